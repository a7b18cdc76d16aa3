#!/usr/bin/env bash
# Run `forewarn try` with the inputs of the action, which are in INPUT_ variables. The exit status is that of
# `forewarn try`.
set -euo pipefail

# Ubuntu does not let ordinary users create network namespaces, which trials need. GitHub's own runners are discarded
# after one job, so the script may lift this restriction there.
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
# action.yml defines both inputs as bash code, like `run` in a workflow, so eval is safe here.
handler=()
eval "options+=($INPUT_OPTIONS)" "handler=($INPUT_HANDLER)"

# GitHub must not interpret the handler's output as workflow commands.
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
  # In an indented block, the handler's output cannot end the code block. GitHub refuses a summary of more than 1 MiB.
  sed 's/^/    /' "$output" | tail --bytes=500K
} >> "$GITHUB_STEP_SUMMARY"
if [[ $status != 0 ]]; then
  echo "::error title=forewarn try::the handler did not pass (exit status $status); the summary of the job says why"
fi
exit "$status"
