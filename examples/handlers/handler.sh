#!/bin/bash
# A handler of scheduled events in bash, with curl and jq; for one VM, to be copied.
#
#     bash handler.sh [MARKER]
#
# The VM is prepared while the file MARKER (`drained`) exists. Put your own work into `prepare` and `recover`: both may
# be called twice, after a reboot for example. The name of the VM comes from the endpoint, as it stands in Resources.
set -uo pipefail

base=http://169.254.169.254/metadata
events="$base/scheduledevents?api-version=2020-07-01"
name_url="$base/instance/compute/name?api-version=2021-02-01&format=text"
marker=${1:-drained}
name=''
approved=' ' # ids, with a blank before and after each
timeout_s=130 # the first answer may take two minutes

# GET, or POST with --data. Fails where there is no answer in time, or another status than 200.
ask() {
  curl --silent --show-error --fail --noproxy '*' --max-time "$timeout_s" --header 'Metadata: true' "$@"
}

# Get ready to be interrupted: drain, fail over, save. Returns when that is done.
prepare() {
  touch "$marker"
}

# Take up work again.
recover() {
  rm -f "$marker"
}

# The ids and states of this VM's events, one event in a line. Fails where the document has no Events, or is empty:
# `input` is an error then, and without it jq says nothing and succeeds.
own_events() {
  jq --null-input --raw-output --arg name "$name" \
    'input.Events | map(select(.Resources | any(. == $name)) | .EventId + " " + .EventStatus) | join("\n")'
}

# Bring the VM into the state that its events ask for.
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

# One poll. Where an answer says nothing, all stays as it is.
look() {
  local document mine
  document=$(ask "$events") || return
  timeout_s=10
  [[ -n $name ]] || name=$(ask "$name_url") || return
  mine=$(own_events <<< "$document") || return
  handle "$mine"
}

while true; do
  look || echo 'no answer that says anything'
  sleep 1
done
