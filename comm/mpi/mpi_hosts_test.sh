#!/bin/bash
# Emulates several machines: network namespaces with a host name, a loopback and addresses of their
# own, joined by a bridge, and with the bridge that Docker gives the same address on every machine.
# mpirun reaches them through a host file and an agent in place of ssh. Needs user namespaces and
# `ip`, but no privileges; where these are missing, the test reports that it was skipped.
set -uo pipefail
main=$1
readonly nodes=3 network=10.213.7 network6=fd00:10:213:7:

if [[ ${2:-} != inside ]]; then
  if ! command -v ip >/dev/null || ! unshare --user --map-root-user --net true; then
    echo "SKIPPED: no user and network namespaces, or no ip command (needs: network_namespaces)"
    exit 0
  fi
  exec unshare --user --map-root-user --net "$0" "$main" inside
fi

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
folder=$(mktemp -d "$TEST_TMPDIR/XXX")
readonly patience=$((TEST_TIMEOUT - 30))  # for jobs that would never end
# Open MPI names its files after the user id, which is 0 in here for every user outside.
export TMPDIR=$folder OMPI_MCA_btl_vader_backing_directory=$folder
holders=()
trap 'kill "${holders[@]}"; rm -rf "$folder"' EXIT
failures=0 protocol=IPv4

fail() {
  echo "FAILED over $protocol: $1"
  echo "$output"
  failures=$((failures + 1))
}

# The machine that runs mpirun has no ranks.
set -e
ip link set lo up
ip link add switch type bridge
ip address add "$network.254/24" dev switch
ipv6=$(cat /proc/net/if_inet6 2>/dev/null || true)
[[ -z $ipv6 ]] || ip address add "$network6:254/64" dev switch nodad
ip link set switch up
for ((i = 1; i <= nodes; ++i)); do
  unshare --net --uts sleep infinity &
  holders+=($!)
  # Waits until the process is in its namespaces.
  while [[ $(readlink "/proc/$!/ns/net") == "$(readlink /proc/self/ns/net)" ||
           $(cat "/proc/$!/comm") != sleep ]]; do sleep 0.01; done
  ip link add "port$i" type veth peer name wire netns "$!"
  ip link set "port$i" master switch up
  nsenter --target "$!" --net --uts sh -c "hostname node$i && ip link set lo up &&
      ip address add $network.$i/24 dev wire &&
      { test -z '$ipv6' || ip address add $network6:$i/64 dev wire nodad; } &&
      ip link set wire up && ip link add docker0 type bridge &&
      ip address add 172.17.0.1/16 dev docker0 && ip link set docker0 up"
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

# The options that a user with such a bridge gives to Open MPI.
networks=(--mca oob_tcp_if_include "$network.0/24" --mca btl_tcp_if_include "$network.0/24")

# launch RANKS COMMAND...
launch() {
  local ranks=$1
  shift
  output=$(timeout "$patience" mpirun --hostfile "$folder/hosts" \
    --mca plm_rsh_agent "$folder/agent" "${networks[@]}" --bind-to none -n "$ranks" "$@" 2>&1)
  code=$?
}

# launch_unattended RANKS PATTERN COMMAND...: uses a launcher that does not end the other ranks when
# one dies. The launcher is ended when the ranks have printed PATTERN.
launch_unattended() {
  local ranks=$1 pattern=$2
  shift 2
  local printed
  printed=$(mktemp "$folder/printed.XXXXXX")
  timeout "$patience" mpirun --hostfile "$folder/hosts" --mca plm_rsh_agent "$folder/agent" \
    "${networks[@]}" --bind-to none --enable-recovery -n "$ranks" "$@" >>"$printed" 2>&1 &
  local launcher=$!
  while kill -0 "$launcher" 2>/dev/null && ! grep -Eq "$pattern" "$printed"; do
    sleep 0.1
  done
  kill "$launcher" 2>/dev/null
  wait "$launcher"
  output=$(cat "$printed")
  grep -Eq "$pattern" <<<"$output"
}

# at_once FUNCTION...: the cases do little but wait, so they run at the same time.
at_once() {
  local -A cases=()
  local each
  for each in "$@"; do
    # Launchers that begin at the same time must not create the same folder.
    (trap - EXIT; TMPDIR=$(mktemp -d "$folder/XXX"); $each; exit $((failures > 0))) \
      >"$folder/$each.log" 2>&1 &
    cases[$each]=$!
  done
  for each in "$@"; do
    wait "${cases[$each]}" || { cat "$folder/$each.log"; failures=$((failures + 1)); }
  done
}

# expect_message RANK REST: checks that exactly one rank prints a message, that it matches, and that
# the job fails.
expect_message() {
  [[ $(grep -c '^rank [0-9]*: ' <<<"$output") == 1 ]] || fail "not one message"
  grep -Eq "^rank $1: $2" <<<"$output" || fail "no message like '$1: $2'"
  [[ $code != 0 && $code != 124 ]] || fail "exit code $code"
}

places() {
  local i
  # shellcheck disable=SC2016  # expanded by the ranks
  launch 6 sh -c 'echo "$(hostname) $OMPI_COMM_WORLD_RANK $(ip -4 -o address show wire |
      grep -o "inet [0-9.]*")"'
  for ((i = 0; i < 6; ++i)); do
    grep -q "^node$((i / 2 + 1)) $i inet $network.$((i / 2 + 1))$" <<<"$output" ||
      fail "rank $i's place"
  done
}
conformance() {
  local ranks
  for ranks in 3 6; do
    launch "$ranks" "$main" conformance
    [[ $code == 0 && $output == *"conformance with $ranks ranks: passed"* ]] ||
      fail "conformance, $ranks ranks"
  done
}
error() {
  launch 6 "$main" error 4
  expect_message 4 "shard 'x' is damaged$"
}
# The state of a process cannot be looked up from another machine; the process is queried.
stopped() {
  launch 6 "$main" stop 4
  local silent="rank 4 .*on node3.* does not answer.*reported: "
  expect_message "[0-9]+" "all-reduce #[0-9]+ of 'dp' .*waiting for rank 4; $silent"
}
late() {
  launch 6 "$main" late 5
  expect_message "[0-9]+" \
    "all-reduce #[0-9]+ of 'dp' .*waiting for rank 5; rank 5 has computed for "
}
# A rank that is queried and answers is waited for.
slow() {
  launch 6 "$main" slow 4
  [[ $code == 0 ]] || fail "a slow rank is no failure"
}
gone() {
  launch_unattended 6 "^rank [0-9]+: all-reduce #[0-9]+ of 'dp' .*waiting for .*; rank 4 .*on node3\
.* has gone: its process has ended" "$main" die 4 || fail "a rank that has gone"
}
at_once places conformance error stopped late slow gone

# Without IPv4.
if [[ -z $ipv6 ]]; then
  echo "SKIPPED ipv6: the kernel has none (needs: ipv6)"
  exit $((failures > 0))
fi
for ((i = 1; i <= nodes; ++i)); do
  nsenter --target "$(cat "$folder/node$i")" --net sh -c \
    'ip link delete docker0 && ip -4 address flush dev wire'
done
ip -4 address flush dev switch
networks=(--mca oob_tcp_disable_ipv4_family 1 --mca btl_tcp_disable_family 4
  --mca oob_tcp_if_include switch,wire --mca btl_tcp_if_include wire)
protocol=IPv6
at_once slow gone

exit $((failures > 0))
