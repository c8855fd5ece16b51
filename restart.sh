#!/bin/sh
# Keep `sia supervise` alive. Arguments are passed on to it.
#
# Its exit code decides: 0 = stop · 42 = start again at once · 2, 78 = stop (a wrong command line or configuration does
# not heal by starting again) · 130, or a signal that stops this script = stop · anything else = start again after a pause
# that doubles with each failure in a row, up to a cap. A run that lasted long enough starts the count again.
#
# SIA           the command (default: `sia` beside this script's .venv, else the one on PATH)
# SIA_PAUSE     first pause in seconds (default 1)      SIA_PAUSE_CAP  longest pause (default 60)
# SIA_STEADY    seconds after which a run counts as good (default 300)

here=$(cd "$(dirname "$0")" && pwd) || exit 1
if [ -z "${SIA:-}" ]; then
    SIA=sia
    [ -x "$here/.venv/bin/sia" ] && SIA=$here/.venv/bin/sia
fi
if ! command -v "$SIA" >/dev/null; then
    echo "restart.sh: $SIA: no such command" >&2
    echo "  fix: install SIA (scripts/setup makes $here/.venv), or name the command in SIA" >&2
    exit 78
fi
pause_first=${SIA_PAUSE:-1}
pause_cap=${SIA_PAUSE_CAP:-60}
steady=${SIA_STEADY:-300}

child=
stopping=
pass_on() { # a signal to this script is the supervisor's; it saves the agent's state and ends with 0
    stopping=1
    [ -n "$child" ] && kill -s "$1" "$child" 2>/dev/null
}
trap 'pass_on TERM' TERM
trap 'pass_on TERM' INT # a background job of sh starts with INT ignored, so TERM is what surely arrives
trap 'pass_on TERM' HUP

failures=0
pause=$pause_first
while :; do
    began=$(date +%s)
    "$SIA" supervise "$@" &
    child=$!
    [ -n "$stopping" ] && kill -s TERM "$child" 2>/dev/null # the signal came while the child had no name yet
    while :; do # wait returns early when a trap ran; ask again until the child is really gone
        wait "$child"
        code=$?
        kill -0 "$child" 2>/dev/null || break
    done
    child=
    if [ -n "$stopping" ]; then
        exit "$code"
    fi
    case $code in
        0 | 2 | 78 | 130) exit "$code" ;;
        42) continue ;;
    esac
    ended=$(date +%s)
    # A clock that stands still or jumps back gives no seconds: that is no steady run.
    if [ $((ended - began)) -ge "$steady" ]; then
        failures=0
        pause=$pause_first
    fi
    failures=$((failures + 1))
    echo "restart.sh: supervise ended with code $code, failure $failures in a row; again in $pause s" >&2
    sleep "$pause" &
    child=$!
    wait "$child"
    child=
    [ -n "$stopping" ] && exit "$code"
    pause=$((pause * 2))
    [ "$pause" -gt "$pause_cap" ] && pause=$pause_cap
done
