#!/bin/sh -e
# Create three machines from network namespaces, connected by a bridge: the cloud's host, and the VMs app-0 and app-1.
# `./machines.sh remove` ends all processes of the machines, and removes the machines.

if [ "$1" = remove ]; then
  for machine in app-0 app-1 cloud; do
    ip netns pids "$machine" | xargs -r kill
    while ip netns pids "$machine" | grep -q .; do sleep 0.1; done
    ip netns del "$machine"
  done
  exit
fi

ip netns add cloud
ip -n cloud link set lo up
ip -n cloud link add br0 type bridge
ip -n cloud addr add 10.9.0.1/24 dev br0
ip -n cloud addr add 169.254.169.254/32 dev br0
ip -n cloud link set br0 up

for number in 0 1; do
  vm=app-$number
  ip netns add "$vm"
  ip -n "$vm" link set lo up
  ip -n cloud link add "$vm" type veth peer name eth0 netns "$vm"
  ip -n cloud link set "$vm" master br0 up
  ip -n "$vm" addr add "10.9.0.1$((number + 1))/24" dev eth0
  ip -n "$vm" link set eth0 up
  ip -n "$vm" route add 169.254.169.254 dev eth0
  mkdir -p "$vm/disk"
done
