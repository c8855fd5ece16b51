#!/bin/bash
set -eu
cd photos
for name in *; do
    stem=${name%.*}
    stem=$(tr 'A-Z _' 'a-z--' <<< "$stem" | sed -E 's/^[a-z]+-(....)(..)(..)-/\1-\2-\3-/')
    case $stem in
        *-edited) mkdir -p edited; new=edited/${stem%-edited}.jpg ;;
        *) new=$stem.jpg ;;
    esac
    mv -n -- "$name" "$new"
done
