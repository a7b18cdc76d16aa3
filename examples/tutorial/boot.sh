#!/bin/sh -e
# Boot a VM, as systemd would: start the counter, and the agent if the VM has an agent.toml. Processes that already run
# are not affected.

cd "$(dirname "$0")"
vm=$1
mkdir -p "$vm/disk" "$vm/local" "$vm/run"
./on "$vm" ../counter.sh start
if [ -e "$vm/agent.toml" ]; then
  ./on "$vm" start-stop-daemon --start --oknodo --quiet --background --make-pidfile --pidfile "$PWD/$vm/run/agent.pid" \
    --chdir "$PWD/$vm" --startas "$(command -v forewarn)" -- agent run
fi
