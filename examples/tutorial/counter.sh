#!/bin/sh -e
# Start or stop the counter of the VM whose folder is the current one, as systemctl would on a real VM.

pidfile=$PWD/run/counter.pid
case $1 in
  start)
    # A new local disk is empty: continue from the checkpoint on the persistent disk.
    [ -e local/count ] || [ ! -e disk/count ] || cp disk/count local/count
    start-stop-daemon --start --oknodo --quiet --background --make-pidfile --pidfile "$pidfile" --chdir "$PWD" \
      --exec /usr/bin/python3 -- ../counter.py local/count
    until curl --silent --output /dev/null http://127.0.0.1:8080/; do sleep 0.1; done
    ;;
  stop)
    # The counter finishes open requests, and writes its count to local/count.
    start-stop-daemon --stop --oknodo --quiet --retry TERM/30 --pidfile "$pidfile"
    ;;
esac
