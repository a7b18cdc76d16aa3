#!/bin/bash
# A handler of scheduled events for one VM, in bash with curl and jq. Copy it, and adapt it.
#
#     bash handler.sh [MARKER]
#
# The VM counts as prepared while the file MARKER (default: `drained`) exists. Put your own work into `prepare` and
# `recover`. If a reboot interrupts one of them, it is called again. The endpoint provides the VM's name, spelled as in
# Resources.
set -uo pipefail

base=http://169.254.169.254/metadata
events="$base/scheduledevents?api-version=2020-07-01"
name_url="$base/instance/compute/name?api-version=2021-02-01&format=text"
marker=${1:-drained}
name=''
approved=' ' # event ids, with a blank before and after each
timeout_s=130 # the first answer may take two minutes

# Send a GET, or a POST with --data. Fails if no complete answer arrives in time, or if the status is an error.
ask() {
  curl --silent --show-error --fail --noproxy '*' --max-time "$timeout_s" --header 'Metadata: true' "$@"
}

# Get the VM ready for an interruption: drain, fail over, save. Return when the VM is ready.
prepare() {
  touch "$marker"
}

# Put the VM back into service.
recover() {
  rm -f "$marker"
}

# Print id and status of this VM's events, one event per line. Fails if the document has no Events or is empty. With
# `input`, jq fails on an empty document; without `input`, jq would print nothing and succeed.
own_events() {
  jq --null-input --raw-output --arg name "$name" \
    'input.Events | map(select(.Resources | any(. == $name)) | .EventId + " " + .EventStatus) | join("\n")'
}

# Prepare, approve or recover, as the VM's events require.
handle() {
  local mine=$1 id status
  if [[ -n $mine && ! -e $marker ]]; then prepare; fi
  while read -r id status; do
    if [[ $status == Scheduled && $approved != *" $id "* ]]; then
      ask --output /dev/null --data "{\"StartRequests\": [{\"EventId\": \"$id\"}]}" "$events" || return
      approved+="$id " # only after 200: an approval without an answer is sent again
    fi
  done <<< "$mine"
  if [[ -z $mine && -e $marker ]]; then recover; fi
}

# Poll once. After a failure, the VM keeps its state: no answer does not mean no events.
look() {
  local document mine
  document=$(ask "$events") || return
  timeout_s=10
  [[ -n $name ]] || name=$(ask "$name_url") || return
  mine=$(own_events <<< "$document") || return
  handle "$mine"
}

while true; do
  look || echo 'no usable answer'
  sleep 1
done
