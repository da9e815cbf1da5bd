#!/bin/sh
words='This copy of torchtune-sys is damaged or cut short: copy the file again, whole.
'
# The two lines above are all that a Python sees of a file whose end is missing: it stops there, and prints the words.
# Below: any POSIX shell finds a Python, and hands it this file, which is a zip archive, too.
# bash takes functions from its environment, and a caller's stands for the program of its name: not for "unset" in posix mode.
POSIXLY_CORRECT=1
unset -f command printf read '['
# By these a Python names itself, even with -I: what it then starts again, and on 3.11 its library, would be a caller's.
unset PYTHONEXECUTABLE __PYVENV_LAUNCHER__
say() { printf 'torchtune-sys: %s\n' "$1" >&2; exit 2; }
# Read from standard input (curl … | sudo sh), a shell has its own name for that of the file: one of that name may lie in the working directory.
case $- in *s*) say 'this file cannot be read from standard input: save it, and start it by its name' ;; esac
size=$(command -p wc -c <"$0" 2>/dev/null)
[ "${size:-0000000000}" -eq 0000000000 ] || say "$0 is damaged or cut short; copy the file again, whole"
user=0
{ while read -r word _real user _others && [ "$word" != Uid: ]; do :; done </proc/self/status; } 2>/dev/null

# Whether nobody but root decides what lies at an absolute path: each directory, link and file on the way to it is root's and for no other to write,
# save directories such as /tmp, in which nobody replaces another's file. In a user namespace root's number may be another one: the owner of /. A file
# system that a user mounted (FUSE, a disk by udisks2) says of its owners what that user wants.
only_roots() {
    set -f
    mounted=
    while read -r _ _ _ _ place entry; do
        case $place:$entry: in # the options are the last word; what stands before them the user chose, too
            *' - fuse'*) case ,${entry##* } in *,user_id=0 | *,user_id=0,*) continue ;; *,user_id=*) ;; *) continue ;; esac ;;
            /media/*nosuid* | /run/media/*nosuid*) ;;
            *) continue ;;
        esac
        case $place in *\\*) ;; *) place=$place/ ;; esac
        mounted="$mounted ${place%%\\*}" # up to the first sign that the table escapes
    done </proc/self/mountinfo
    todo=$1 place='' left=200 point=
    set -- $(command -p ls -ldn /)
    top=${3:-0}
    while left=$((left - 1)) && [ "$left" -gt 0 ]; do
        entry=$(command -p ls -ldn "${place:-/}") || return 1
        set -- $entry
        for point in $mounted; do
            case $place/ in "$point"*) return 1 ;; esac
        done
        [ "${3:-none}" = 0 ] || [ "${3:-none}" = "$top" ] || return 1
        case $1 in
            l*)
                todo=${entry#*" $place -> "}/$todo
                case $todo in
                    /*) place='' ;;
                    *) place=${place%/*} ;;
                esac
                ;;
            d????????[tT]*) ;;
            ?????w* | ????????w*) return 1 ;;
        esac
        part=
        while [ -z "$part" ]; do
            [ -n "$todo" ] || return 0
            part=${todo%%/*}
            case $todo in
                */*) todo=${todo#*/} ;;
                *) todo='' ;;
            esac
            case $part in
                .) part= ;;
                ..) place=${place%/*} part= ;;
            esac
        done
        place=$place/$part
    done
    return 1
} 2>/dev/null

# A name that begins with a hyphen, as "sh -- *" may give it, would be an option of the interpreter's: -c, or its standard input.
self=$0
case $self in -*) self=./$self ;; esac
refused=
for python in python3 PYTHONS /usr/bin/python3 /usr/local/bin/python3 /usr/libexec/platform-python; do
    python=$(command -v "$python" 2>/dev/null) || continue
    [ -x "$python" ] || continue
    if [ "${user:-0}" -ne 0 ] || { [ "${python#/}" != "$python" ] && only_roots "$python"; }; then
        exec "$python" -IS "$self" "$@"
    fi
    refused=${refused:-$python}
done
[ -z "$refused" ] ||
    say "root takes from PATH no Python that others may change, such as $refused, and there is no other; trust it by its name: $refused $0"
say "no python3 on PATH; this file needs a WANTED: install one and run: /path/to/python3 $0"
