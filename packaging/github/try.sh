#!/usr/bin/env bash
# Runs `forewarn try` with the inputs of the action, which are variables; its exit status is that of `forewarn try`.
set -euo pipefail

# Ubuntu keeps ordinary users from making networks. GitHub's machines live for one job, so it may be allowed there.
restriction=/proc/sys/kernel/apparmor_restrict_unprivileged_userns
if [[ ${RUNNER_ENVIRONMENT:-} == github-hosted && -r $restriction && $(< "$restriction") != 0 ]]; then
  sudo sysctl --quiet --write kernel.apparmor_restrict_unprivileged_userns=0
fi
if ! unshare --net true 2> /dev/null && ! unshare --user --map-root-user --net true 2> /dev/null; then
  echo "::warning title=forewarn try::no separate network can be made here: the handler must ask at \$FOREWARN_ENDPOINT"
fi

mkdir -p -- "$(dirname -- "$INPUT_JUNIT")"
options=(--junit "$INPUT_JUNIT")
if [[ $INPUT_SCENARIO == all ]]; then options+=(--all); else options+=(--scenario "$INPUT_SCENARIO"); fi
if [[ -n $INPUT_PREPARED ]]; then options+=(--prepared "$INPUT_PREPARED"); fi
if [[ -n $INPUT_RECOVERED ]]; then options+=(--recovered "$INPUT_RECOVERED"); fi
# Both are bash by contract, as a `run` of the workflow is.
handler=()
eval "options+=($INPUT_OPTIONS)" "handler=($INPUT_HANDLER)"

# What a handler prints must not be taken for a command to GitHub.
token=$(< /proc/sys/kernel/random/uuid)
output=$RUNNER_TEMP/forewarn-try.txt
status=0
echo "::stop-commands::$token"
NO_COLOR=1 forewarn try "${options[@]}" -- "${handler[@]}" 2>&1 | tee "$output" || status=$?
echo "::$token::"

{
  echo "passed=$([[ $status == 0 ]] && echo true || echo false)"
  echo "junit=$(realpath --canonicalize-missing -- "$INPUT_JUNIT")"
} >> "$GITHUB_OUTPUT"
{
  echo '### forewarn try'
  echo
  # An indented block ends nowhere else, whatever the handler printed. GitHub refuses more than 1 MiB.
  sed 's/^/    /' "$output" | tail --bytes=500K
} >> "$GITHUB_STEP_SUMMARY"
if [[ $status != 0 ]]; then
  echo "::error title=forewarn try::the handler did not pass (exit status $status); the summary of the job says why"
fi
exit "$status"
