#!/bin/sh
# Runs a command and keeps what it writes to stderr. If it fails, that is printed, and nothing is kept.
#   keep_messages.sh FILE command...
file=$1
shift
"$@" 2>"$file.unfinished" && mv "$file.unfinished" "$file" && exit
cat "$file.unfinished" >&2
rm -f "$file.unfinished"
exit 1
