#!/bin/bash
# Several machines, as far as processes can tell: network namespaces with a host name, a loopback
# and an address of their own, joined by a bridge. mpirun reaches them through a host file and an
# agent in place of ssh. Needs no privileges but user namespaces, and `ip`; where they are missing,
# says so and tests nothing.
set -uo pipefail
main=$1
readonly nodes=3 network=10.213.7

if [[ ${2:-} != inside ]]; then
  if ! command -v ip >/dev/null || ! unshare --user --map-root-user --net true; then
    echo "SKIPPED: no user and network namespaces, or no ip command"
    exit 0
  fi
  exec unshare --user --map-root-user --net "$0" "$main" inside
fi

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
folder=$(mktemp -d /tmp/mpi_hosts.XXXXXX)
# Open MPI's own files carry the user's number, which is 0 in here, for whoever it is outside.
export TMPDIR=$folder
holders=()
trap 'kill "${holders[@]}"; rm -rf "$folder"' EXIT
failures=0

fail() {
  echo "FAILED: $1"
  echo "$output"
  failures=$((failures + 1))
}

# The machine that mpirun runs on has no ranks.
set -e
ip link set lo up
ip link add switch type bridge
ip address add "$network.254/24" dev switch
ip link set switch up
for ((i = 1; i <= nodes; ++i)); do
  unshare --net --uts sleep 600 &
  holders+=($!)
  # Until the process is in its namespaces.
  while [[ $(readlink "/proc/$!/ns/net") == "$(readlink /proc/self/ns/net)" ||
           $(cat "/proc/$!/comm") != sleep ]]; do sleep 0.01; done
  ip link add "port$i" type veth peer name wire netns "$!"
  ip link set "port$i" master switch up
  nsenter --target "$!" --net --uts sh -c "hostname node$i && ip link set lo up &&
      ip address add $network.$i/24 dev wire && ip link set wire up"
  echo "node$i slots=2" >>"$folder/hosts"
  echo "$!" >"$folder/node$i"
done
cat >"$folder/agent" <<'AGENT'
#!/bin/sh
# HOST COMMAND...: as ssh.
node=$(cat "$(dirname "$0")/$1")
shift
exec nsenter --target "$node" --net --uts sh -c "$*"
AGENT
chmod +x "$folder/agent"
set +e

# launch RANKS COMMAND...
launch() {
  local ranks=$1
  shift
  output=$(timeout 60 mpirun --hostfile "$folder/hosts" --mca plm_rsh_agent "$folder/agent" \
    --bind-to none -n "$ranks" "$@" 2>&1)
  code=$?
}

# shellcheck disable=SC2016  # for the ranks to expand
launch 6 sh -c 'echo "$(hostname) $OMPI_COMM_WORLD_RANK $(ip -4 -o address show wire |
    grep -o "inet [0-9.]*")"'
for ((i = 0; i < 6; ++i)); do
  grep -q "^node$((i / 2 + 1)) $i inet $network.$((i / 2 + 1))$" <<<"$output" ||
    fail "rank $i's place"
done
for ranks in 3 6; do
  launch "$ranks" "$main" conformance
  [[ $code == 0 && $output == *"conformance with $ranks ranks: passed"* ]] ||
    fail "conformance, $ranks ranks"
done

# says RANK REST: exactly one rank speaks, and says this; the job ends with an error.
says() {
  [[ $(grep -c '^rank [0-9]*: ' <<<"$output") == 1 ]] || fail "not one message"
  grep -Eq "^rank $1: $2" <<<"$output" || fail "no message like '$1: $2'"
  [[ $code != 0 && $code != 124 ]] || fail "exit code $code"
}
launch 6 "$main" error 4
says 4 "shard 'x' is damaged$"
# Neither its state nor its end can be looked up from another machine; it is asked.
launch 6 "$main" stop 4
says "[0-9]+" "all-reduce #[0-9]+ of 'dp' .*waiting for rank 4; rank 4 .*on node3.* does not answer.*reported: "
launch 6 "$main" late 5
says "[0-9]+" "all-reduce #[0-9]+ of 'dp' .*waiting for rank 5; rank 5 has computed for "

exit $((failures > 0))
