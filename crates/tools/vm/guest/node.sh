# SPDX-License-Identifier: Apache-2.0 OR MIT
# shellcheck shell=bash
# The check `node` of `erb lab vm`, in the guest: Linux's own initiator on a storage node, both on the loopback. The store is
# /dev/vda; what leaves the guest is written to /run/out, a folder of the host's. erb_work= is on the kernel's command line.
# Ends the guest. The verdict is the line `guest: N failed`.
nqn=nqn.2026-11.org.erb:node
url=nvme://127.0.0.1
# node_start [OPTION...]
node_start() {
	"$work/erb" node start /dev/vda --json "$@" >/run/node 2>&1 &
	node=$!
	within 60 grep -q '"url"' /run/node || ! cat /run/node
}

# No connection before it is there: the kernel would count refused ones as failed reconnects.
node_kill() {
	kill -9 "$node"
	wait "$node" 2>/dev/null
	return 0
}

# capture_start NAME: what goes over the loopback into a file outside of the guest.
capture_start() {
	dumpcap -q -i lo -f 'tcp port 4420' -B 64 -w "/run/out/$1.pcap" 2>/run/capture &
	capture=$!
	within 60 grep -q '^File:' /run/capture || ! cat /run/capture
}

capture_stop() {
	sleep 1
	kill -INT "$capture"
	wait "$capture"
	grep -q 'dropped.* 0/' /run/capture || grep -q '(100\.0%)' /run/capture || ! cat /run/capture
}

discovers() {
	nvme discover -t tcp -a 127.0.0.1 -s 4420 "$@" >/run/discovered && grep -q "subnqn: *$nqn" /run/discovered ||
		! cat /run/discovered
}

state_is() {
	[ "$(cat /sys/class/nvme/nvme0/state 2>/dev/null)" = "$1" ]
}

state_is_not() {
	! state_is "$1"
}

# connects [OPTION...]
connects() {
	nvme connect -t tcp -a 127.0.0.1 -s 4420 -n "$nqn" --nr-io-queues=2 --keep-alive-tmo=5 --reconnect-delay=1 \
		--ctrl-loss-tmo=600 "$@" && within 60 state_is live && within 60 test -c /dev/ng0n1
}

disconnects() {
	nvme disconnect -n "$nqn" >/run/disconnected && within 60 test ! -e /dev/nvme0
}

# A namespace of keys and values is no block device. The kernel keeps a hidden disk of it.
only_characters() {
	[ -c /dev/ng0n1 ] && [ ! -e /dev/nvme0n1 ]
}

identifies() {
	nvme id-ctrl /dev/nvme0 >/run/identified && grep -q '^mdts *: 8$' /run/identified &&
		grep -q '^kas *: 10$' /run/identified || ! cat /run/identified
}

lists_namespaces() {
	nvme list-ns /dev/nvme0 --csi=1 | tee /run/namespaces
	grep -q ':0x1$' /run/namespaces
}

# passthru OPCODE [OPTION...]: key "ab" (cdw2) of two bytes.
passthru() {
	local opcode=$1
	shift
	nvme io-passthru /dev/ng0n1 --opcode="$opcode" --namespace-id=1 --cdw2=0x6261 --cdw11=2 "$@" 2>/run/result &&
		cat /run/result
}

# By nvme-cli alone: Store, Retrieve, Exist, List, Delete; C1, C2 and C9; what `erb kv` wrote, and the other way.
cli_stores_and_retrieves() {
	printf 'a value of 21 bytes..' >/run/value
	passthru 0x01 --write --data-len=21 --cdw10=21 --input-file=/run/value | grep -q 'is Success' || return
	[ "$("$work/erb" kv get "$url" ab)" = "$(cat /run/value)" ] || return
	"$work/erb" kv put "$url" ab 'erb kv writes this' >/run/version || return
	passthru 0x02 --read --data-len=18 --cdw10=18 --raw-binary | grep -qa '^erb kv writes this' || return
	passthru 0x14 | grep -q 'is Success' || return
	passthru 0x06 --read --data-len=4096 --cdw10=4096 --raw-binary | grep -qa ab || return
	passthru 0x10 | grep -q 'is Success' || return
	! "$work/erb" kv get "$url" ab 2>/dev/null
}

cli_versions_and_roll_back() {
	printf 'first' >/run/value
	passthru 0xc1 --write --data-len=5 --cdw10=5 --input-file=/run/value >/run/said || ! cat /run/said || return
	printf 'other' >/run/value
	passthru 0xc1 --write --data-len=5 --cdw10=5 --input-file=/run/value >/run/said || ! cat /run/said || return
	# One back: selector 2, argument 1.
	nvme io-passthru /dev/ng0n1 --opcode=0xc2 --namespace-id=1 --cdw2=0x6261 --cdw11=0x20002 --cdw12=1 --read \
		--data-len=5 --cdw10=5 --raw-binary >/run/read 2>/dev/null
	[ "$(cat /run/read)" = first ] || return
	# Mode 1: a moment; the moment of the first version; prefix "ab".
	local moment
	moment=$("$work/erb" kv versions "$url" ab --json | sed -n 's/.*"version":"\([0-9]*\)".*/\1/p' | sed -n 2p)
	{
		printf '\1\0\2\0\0\0\0\0'
		le64 "$moment"
		head -c 48 /dev/zero
		printf 'ab'
	} >/run/roll_back
	nvme io-passthru /dev/ng0n1 --opcode=0xc9 --namespace-id=1 --write --data-len=66 --cdw10=66 \
		--input-file=/run/roll_back >/run/said 2>&1 || ! cat /run/said || return
	[ "$("$work/erb" kv get "$url" ab)" = first ]
}

le64() {
	local byte
	for byte in 0 8 16 24 32 40 48 56; do
		# shellcheck disable=SC2059 # the byte is the format
		printf "\\x$(printf %02x $(($1 >> byte & 255)))"
	done
}

initiator() {
	"$work/erb-node-vm" initiator /dev/ng0n1 /dev/nvme0 "$url" --prefix "$1"
}

# Values that were there before are there, and commands go on.
survives() {
	passthru 0x01 --write --data-len=5 --cdw10=5 --input-file=/run/value | grep -q 'is Success' &&
		[ "$("$work/erb" kv get "$url" ab)" = "$(cat /run/value)" ]
}

reconnects_after_a_kill() {
	node_kill
	within 60 state_is_not live || return
	node_start && within 60 state_is live && survives
}

# The node stands still for longer than KATO: Linux's keep alive gets no answer.
reconnects_after_a_standstill() {
	kill -STOP "$node"
	within 120 state_is_not live || return
	kill -CONT "$node"
	within 120 state_is live && survives
}

# Nothing gets through for longer than KATO: the node hears no keep alive and ends the controller.
reconnects_after_silence() {
	tc qdisc add dev lo root netem loss 100% || return
	within 120 state_is_not live
	sleep 15
	tc qdisc del dev lo root
	within 120 state_is live && survives
}

# tries_with FILE NODE-FILE [OPTION...]: connects as the host that is listed, by the host's secret of a file, and asks
# the node to prove that it has the one of another file; -: without.
tries_with() {
	local secret='' proof=''
	[ "$1" = - ] || secret=$(sed -n 1p "$1")
	[ "$2" = - ] || proof=$(sed -n 2p "$2")
	shift 2
	connects --hostnqn "$host" --hostid 11111111-2222-3333-4444-555555555555 \
		${secret:+--dhchap-secret "$secret"} ${proof:+--dhchap-ctrl-secret "$proof"} "$@"
}

# said_since COUNT: what the kernel said behind so many lines.
said_since() {
	dmesg --notime | tail -n +"$(($1 + 1))" | grep nvme >/run/said_by_kernel
}

# connects_with FILE NODE-FILE [OPTION...]: it is let in, and has believed the node if it asked for a proof. A node
# gives a stranger 5 s. What is emulated may be slower, so it tries again.
connects_with() {
	local try before proofs=1
	[ "$2" != - ] || proofs=0
	for try in 1 2 3 4 5 6; do
		before=$(dmesg | wc -l)
		tries_with "$@" && break
		nvme disconnect -n "$nqn" >/run/disconnected
		sleep 1
	done
	said_since "$before"
	echo "at try $try: $(grep 'authenticated with' /run/said_by_kernel)"
	grep -q 'authenticated with hash' /run/said_by_kernel &&
		[ "$(grep -c 'controller authenticated$' /run/said_by_kernel)" = "$proofs" ]
}

# is_refused WHY COMMAND...: it ends badly and without a device, and what the kernel says first is that, unless it
# is that the node has let it in.
is_refused() {
	local try before why=$1
	shift
	for try in 1 2 3 4 5 6; do
		before=$(dmesg | wc -l)
		! "$@" 2>/run/refused && [ ! -e /dev/ng0n1 ] || return
		said_since "$before"
		grep -v 'authenticated with' /run/said_by_kernel | head -n 1 | grep -q ": $why\$" && return
		cat /run/refused /run/said_by_kernel
	done
	return 1
}

# Bound to the name of who has it.
nvme_cli_makes_secrets() {
	local owner
	for owner in "$host" "$nqn"; do
		nvme gen-dhchap-key /dev/null --hmac=3 --key-length=64 --nqn="$owner" || return
	done >/run/made
	chmod 600 /run/made
	grep -c '^DHHC-1:03:' /run/made | grep -qx 2 || ! cat /run/made || return
	"$work/erb" node host rekey /run/hosts "$host" --from /run/made
}

# The kernel is connected when its host gets other secrets: it has to go, and does not come back.
ends_with_its_secret() {
	"$work/erb" node host rekey /run/hosts "$host" --from /run/others || return
	within 120 test ! -e /dev/ng0n1
}

# say_log FROM: what the kernel said since, of nvme or as a warning.
kernel_is_quiet() {
	dmesg --notime --level=emerg,alert,crit,err,warn | tail -n +"$((said + 1))" >/run/said_by_kernel
	grep -iE 'nvme|WARNING|BUG:|Oops|Call Trace|blocked for more' /run/said_by_kernel | grep -vE "$1" | sort | uniq -c
	! grep -iE 'nvme|WARNING|BUG:|Oops|Call Trace|blocked for more' /run/said_by_kernel | grep -qvE "$1"
}

host=nqn.2026-11.org.example:linux
echo "guest: Linux $(uname -r), $(nvme --version | head -n 1)"
for module in virtio_blk nvme_tcp sch_netem af_packet; do
	modprobe -q "$module" || echo "no module $module"
done
mkdir -p /run/out
need mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000 out /run/out
need "$work/erb" node format /dev/vda --shards 2 --json
need node_start
said=$(dmesg --level=emerg,alert,crit,err,warn | wc -l)
check discovers
for digests in "" "--hdr-digest --data-digest" "--hdr-digest" "--data-digest"; do
	# shellcheck disable=SC2086 # words
	set -- $digests
	echo "guest: digests: ${digests:-none}"
	name=capture$(echo "$digests" | tr -d ' -')
	check capture_start "$name"
	check connects "$@"
	check only_characters
	check identifies
	check lists_namespaces
	check cli_stores_and_retrieves
	check cli_versions_and_roll_back
	check initiator "${#digests}"
	check disconnects
	check capture_stop
done
# Nothing at all is expected until here.
check kernel_is_quiet '^$'
for digests in "" "--hdr-digest --data-digest"; do
	# shellcheck disable=SC2086 # words
	set -- $digests
	echo "guest: faults, digests: ${digests:-none}"
	check connects "$@"
	check reconnects_after_a_kill
	check reconnects_after_a_standstill
	check reconnects_after_silence
	check disconnects
done
expected='failed nvme_keep_alive_end_io|keep.?alive|[Rr]econnect|starting error recovery|timeout|socket error|Property|Failed to (connect|read|write)|queue_size|failed to connect socket|Connect command failed|failed to send request|creating|queue [0-9]+ connect|I/O.*(opcode|QID)|receive failed'
check kernel_is_quiet "$expected"
node_kill
echo "guest: secrets"
need "$work/erb" node host add /run/hosts "$host" --role admin --out /run/secrets
need "$work/erb" node host add /run/unused "$host" --role admin --out /run/others
need node_start --hosts /run/hosts
export ERB_HOST_NQN=$host ERB_SECRET_FILE=/run/secrets
check discovers --hostnqn "$host"
check capture_start capturesecrets
check connects_with /run/secrets /run/secrets
check cli_stores_and_retrieves
check cli_versions_and_roll_back
check disconnects
check capture_stop
check connects_with /run/secrets - --hdr-digest --data-digest
check survives
check disconnects
check is_refused 'no key' tries_with - -
check is_refused 'authentication failed, error -129' tries_with /run/others /run/secrets
# The node lets it in, and is not believed.
check is_refused 'controller authentication failed' tries_with /run/secrets /run/others
check connects_with /run/secrets /run/secrets
check ends_with_its_secret
check is_refused 'authentication failed, error -129' tries_with /run/secrets /run/secrets
export ERB_SECRET_FILE=/run/others
check connects_with /run/others /run/others
check survives
check disconnects
check nvme_cli_makes_secrets
export ERB_SECRET_FILE=/run/made
check connects_with /run/made /run/made
check survives
check disconnects
node_kill
dmesg --notime | grep -i nvme >/run/out/kernel.log
check "$work/erb" node check /dev/vda
echo "guest: $failed failed"
busybox poweroff -f
