# Commands come on 3 as three NUL-ended words: the text, and the pipes for its
# stdout and stderr. Statuses go to 4, a line each. Both are closed while a
# command runs, so that nothing it starts can speak for the shell.
__berth_state=$1
[ "$2" = fresh ] && command rm -f "$__berth_state"
set --
# A shell that is told to exit leaves its state for the next one.
__berth_save() {
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
if [ -f "$__berth_state" ]; then
  . "$__berth_state" >/dev/null 2>&1
  command rm -f "$__berth_state"
fi
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
while IFS= read -r -d '' -u 3 __berth_command && IFS= read -r -d '' -u 3 __berth_out && IFS= read -r -d '' -u 3 __berth_err; do
  __berth_busy=1
  { __berth_return; eval "$__berth_command"; } </dev/null >"$__berth_out" 2>"$__berth_err" 3<&- 4>&-
  __berth_status=$? __berth_busy=
  printf '%d\n' "$__berth_status" >&4
done
trap - EXIT
