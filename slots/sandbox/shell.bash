# Evaluated once, by a bash that reads what it is to do from descriptor 0. There
# each command comes as a line that evaluates __berth_step and three NUL-ended
# words, which that reads: the text, and the pipes for its stdout and stderr. So
# it is in no loop and in no function: break, return and declare mean what they
# mean at a prompt. Statuses go to 4, a line each. Nothing that a command starts
# has 0 or 4, so that nothing can speak to the shell or for it.
__berth_state=$2
[ "$3" = fresh ] && command rm -f "$__berth_state"
set --
exec 3>&- # takes the place between 2 and 4 only
if [ -f "$__berth_state" ]; then
  . "$__berth_state" >/dev/null 2>&1
  command rm -f "$__berth_state"
fi
# A shell that is told to exit leaves its state for the next one.
__berth_save() {
  [ -n "$__berth_busy" ] || return # it is nobody's doing, and there will be no next one
  {
    declare -p
    declare -f
    alias -p
    shopt -p
    local o
    o=$(set +o)
    printf '%s\n' "${o//set -o errexit/}"
    trap -p | while IFS= read -r o; do case $o in *' EXIT' | *' SIGURG') ;; *) printf '%s\n' "$o" ;; esac; done
    printf 'cd -- %q\n' "$PWD"
  } >"$__berth_state" 2>/dev/null
}
trap __berth_save EXIT
# A command that is ended is ended whole: what it has running is killed by the
# holder, and bash skips the rest of its text, which no signal makes it do. No
# process may be needed for that: the holder would kill it too.
__berth_busy=
__berth_skip() {
  case $BASH_COMMAND in '__berth_status=$?'* | __berth_save) ;; *) return 2 ;; esac
  shopt -u extdebug
  trap - DEBUG
  . "$__berth_state.debug"
}
trap '[ -z "$__berth_busy" ] || { trap -p DEBUG >"$__berth_state.debug"; shopt -s extdebug; trap __berth_skip DEBUG; }' URG
__berth_status=0
__berth_return() { return "$__berth_status"; }
# It is read whole before the first of it runs, and what follows a command is
# silent, lest set -v and set -x tell of it. A trap on EXIT speaks where the
# command did: by then bash has taken back the redirections of all groups.
__berth_step='{
  IFS= \builtin read -r -d "" __berth_command && IFS= \builtin read -r -d "" __berth_out && IFS= \builtin read -r -d "" __berth_err || \builtin exit
  __berth_busy=1
  \command exec >"$__berth_out" 2>"$__berth_err"
  { __berth_return; \builtin eval "$__berth_command"; } </dev/null 4>&-
  { __berth_status=$? __berth_busy= __berth_flags=$-; \builtin set +x; } >/dev/null 2>&1
  \command exec >/dev/null 2>&1
  \builtin test "${__berth_flags#*x}" = "$__berth_flags" || \builtin set -x
  \builtin printf "%d\n" "$__berth_status" >&4
}'
