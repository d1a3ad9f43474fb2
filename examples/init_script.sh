#!/bin/bash
# Cluster init script: brings a dataset to this node's disk before Spark and the training start.
#
# A node without the copy starts all the same, and the job makes it: only STAGE_STRICT=1 lets the cluster fail.
# Keep this file in a Unity Catalog volume, since init scripts from elsewhere cannot read volumes. A cluster installs its
# libraries after its init scripts; so before this: /databricks/python/bin/pip install --quiet uc-stage
# Set UC_STAGE_CACHE_DIR among the cluster's environment variables, and the job finds the copy where this puts it.

source=${STAGE_SOURCE:-/Volumes/main/sales/train/orders}
seconds=${STAGE_SECONDS:-900} # for all of it; the next run goes on from what this one copied
pause=${STAGE_PAUSE:-5}       # before another try, where the mount is not up yet
[[ $seconds =~ ^[1-9][0-9]*$ ]] || seconds=900
PATH=/databricks/python/bin:$PATH

SECONDS=0
for try in 1 2 3 4 5; do
    left=$((seconds - SECONDS))
    ((left > 0)) || break
    # `--timeout` bounds the wait for another process that copies the same, and runs out first: it says which one that is.
    wait=$((left > 20 ? left - 10 : left / 2))
    said=$(timeout --kill-after=10 "$left" uc-stage cache "$source" --quiet --timeout "$wait" 2>&1 </dev/null)
    code=$?
    case $code in
    0)
        echo "uc-stage: $source is at $said, after $SECONDS s" >&2
        exit 0
        ;;
    10 | 15) ((try < 5)) && sleep "$pause" ;; # not there, or does not answer: yet
    124) said="not whole after $seconds s" && break ;;
    *) break ;;
    esac
done

# One line for the cluster's init script logs, which keep stderr.
echo "uc-stage: no copy of $source yet (exit $code): ${said%%$'\n'*}" >&2
[[ ${STAGE_STRICT:-0} == 1 ]] && exit "$code"
exit 0
