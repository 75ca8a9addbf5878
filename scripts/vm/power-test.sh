#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# power-test.sh - the power of a machine with a storage node is cut under load, and its drive loses what it had in
# its cache: is everything there that was acknowledged, and nothing taken back that anybody has read
# (docs/internals/node.md)?
#
#   scripts/vm/power-test.sh [SERIES]
#
# SERIES is like 6.12, which it is if nothing is said; kernels as in dax-test.sh. The guest is emulated. Its drives
# are a program of ours on this machine (crates/proof/node-vm, drive.rs), to which QEMU speaks NBD, and its clients
# run on this machine too. Needs root, Debian's keys, 3 GB of memory.
#
#   ERB_BOOTS=6      cuts of the machine
#   ERB_CUTS=4       cuts of the drive alone before each second one
#   ERB_SEED=N       of all that is random
#   ERB_LYING=1      drives that say they have flushed, and have not: passes if the test finds that out
#
# Exit code 0: nothing was lost or taken back. What was said is in target/vm/power.log.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
# shellcheck source=scripts/setup.sh
. scripts/setup.sh
# For vm.sh.
# shellcheck disable=SC2034
GUEST_SECONDS_MAX=1800
# shellcheck source=scripts/vm/vm.sh
. scripts/vm/vm.sh

# power_boot KERNEL NODE-PORT COMMANDS-PORT FLUSH-SOCKET FUA-SOCKET PID-FILE: by erb-node-vm, again and again.
power_boot() {
	local nbd=driver=raw,file.driver=nbd,file.server.type=unix,file.server.path
	vm_run "$1" scripts/vm/power-guest.sh 1G "" -M q35 -pidfile "$6" \
		-netdev "user,id=net,ipv6=off,hostfwd=tcp:127.0.0.1:$2-:5000,hostfwd=tcp:127.0.0.1:$3-:5001" \
		-device virtio-net-pci,netdev=net,romfile= \
		-blockdev "node-name=flush,$nbd=$4" -device virtio-blk-pci,drive=flush \
		-blockdev "node-name=fua,$nbd=$5" -device virtio-scsi-pci -device scsi-hd,drive=fua,dpofua=on
}

if [ "${1:-}" = --boot ]; then
	shift
	power_boot "$@" >/dev/null 2>&1
	exit
fi

setup_root
setup_rust run
vm_packages e2fsprogs iproute2
cargo build --release --locked --package erb --package erb-node-vm
cp "${CARGO_TARGET_DIR:-target}"/release/{erb,erb-node-vm} "$vm/"
vm_suites "${SUITES[@]}"
series=${1:-6.12}
kernel=$(vm_newest "$series")
[ -n "$kernel" ] || die "no linux-image-$series in ${SUITES[*]}"
vm_kernel "$kernel"
vm_initrd "$kernel"
sockets=$(mktemp -d)
seed=${ERB_SEED:-$RANDOM}
say "cutting the power of $kernel, seed $seed"
result=0
"$vm/erb-node-vm" power "$PWD/scripts/vm/power-test.sh" "$sockets" --kernel "$kernel" --boots "${ERB_BOOTS:-6}" \
	--cuts "${ERB_CUTS:-4}" --seed "$seed" ${ERB_LYING:+--lying} 2>&1 | tee "$vm/power.log" || result=$?
rm -r "$sockets"
[ "$result" = 0 ] || die "not all is as it should be: see $vm/power.log, and $vm/log for the last guest"
[ -n "${ERB_LYING:-}" ] || say "nothing was lost or taken back"
