#!/bin/sh
"true" 'This copy of torchtune-sys is damaged or cut short: copy the file again, whole.
'
# The two lines above are all that a Python sees of a file whose end is missing: it stops there, and prints the words.
# Below: any POSIX shell finds a Python, and hands it this file, which is a zip archive, too.
say() { printf 'torchtune-sys: %s\n' "$1" >&2; exit 2; }
size=$(wc -c <"$0" 2>/dev/null)
[ "${size:-0000000000}" -eq 0000000000 ] || say "$0 is damaged or cut short; copy the file again, whole"
for python in python3 PYTHONS; do
    if command -v "$python" >/dev/null 2>&1; then exec "$python" -IS "$0" "$@"; fi
done
for python in /usr/bin/python3 /usr/local/bin/python3 /usr/libexec/platform-python; do
    if [ -x "$python" ]; then exec "$python" -IS "$0" "$@"; fi
done
say "no python3 on PATH; this file needs a WANTED: install one and run: /path/to/python3 $0"
