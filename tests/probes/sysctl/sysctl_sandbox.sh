#!/bin/sh
# usage: unshare --mount --propagation private sh sysctl_sandbox.sh TREE TOOL [ARGS…]
# Lays TREE/etc/sysctl.d … over the machine's directories and TREE/proc-sys/* over /proc/sys, in this mount namespace only,
# runs the tool, and leaves what it wrote in TREE/proc-sys.
set -eu
tree=$1
shift
for place in etc/sysctl.d run/sysctl.d usr/local/lib/sysctl.d usr/lib/sysctl.d; do
  mkdir -p "$tree/$place"
  # the directory may not exist on this machine: its parent gets a private copy on tmpfs only where that is harmless
  if [ ! -d "/$place" ]; then
    parent=/$(dirname "$place")
    case $parent in
      /run) mount -t tmpfs tmpfs /run ;;
      /usr/local/lib) mount -t tmpfs tmpfs /usr/local/lib ;;
      *) exit 77 ;;
    esac
    mkdir -p "/$place"
  fi
  mount --bind "$tree/$place" "/$place"
done
if [ -e "$tree/etc/sysctl.conf" ]; then
  [ -e /etc/sysctl.conf ] || exit 77
  mount --bind "$tree/etc/sysctl.conf" /etc/sysctl.conf
fi
for place in vm net/ipv4/conf; do
  mount --bind "$tree/proc-sys/$place" "/proc/sys/$place"
done
"$@" >"$tree/out" 2>&1 || true
