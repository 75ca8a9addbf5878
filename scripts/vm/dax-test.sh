#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# dax-test.sh - sends from persistent memory on other kernels than the one that runs: is it without a
# copy, and does no byte of another file ever leave (docs/internals/dax-send.md)?
#
#   scripts/vm/dax-test.sh [SERIES...]
#
# SERIES is like 6.12: the newest kernel of it that Debian's package servers have; "newest": of all.
# Without one: 6.1, 6.12, 6.16 or the next that there is, newest. A kernel is downloaded (110 to 170 MB)
# and unpacked under target/vm, never installed. Installed are QEMU, busybox-static, cpio, kmod,
# xz-utils, e2fsprogs, xfsprogs, ndctl, iproute2 and util-linux, if they are missing.
#
# Kernels come from where this machine's apt gets Debian's packages, or from ERB_DEBIAN=URL and
# ERB_DEBIAN_SECURITY=URL.
#
# The guest is emulated, its persistent memory is 384 MB by memmap= and 384 MB of a virtual nvdimm, its
# two cards are an e1000 and a virtio-net. It sees this machine's files read-only, and on the network
# the peer that this script starts on the loopback. Needs root, Debian's keys, 3 GB of memory; takes
# some minutes for each kernel.
#
#   ERB_LONG=1       kills 1,000 senders, 500 on each of two file systems, not 48 on each
#   ERB_SEED=N       of the moments at which they are killed
#   ERB_ONLY=NAME    only checks with NAME in their names
#
# Exit code 0: all checks passed on all kernels. What they said is in target/vm/dax-SERIES.log.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
# shellcheck source=scripts/setup.sh
. scripts/setup.sh
# For vm.sh.
GUEST_SECONDS_MAX=1800
[ -z "${ERB_LONG:-}" ] || GUEST_SECONDS_MAX=14400
# shellcheck source=scripts/vm/vm.sh
. scripts/vm/vm.sh

PMEM_BYTES=384M

dax_build() {
	cargo build --release --locked --package erb-dax-vm
	cp "${CARGO_TARGET_DIR:-target}/release/erb-dax-vm" "$vm/"
}

# dax_kernel SERIES: its package. Debian keeps few series: what is gone is tried with the next ones.
dax_kernel() {
	case $1 in
	6.16) vm_newest 6.16 6.17 6.18 6.19 7.0 newest ;;
	*) vm_newest "$1" ;;
	esac
}

# dax_run PACKAGE: the peer lives as long as the guest.
dax_run() {
	local result=0 ports pid
	coproc PEER { exec "$vm/erb-dax-vm" peer; }
	pid=$PEER_PID
	read -r ports <&"${PEER[0]}"
	vm_run "$1" scripts/vm/dax-guest.sh 2560M,slots=2,maxmem=4G \
		"memmap=$PMEM_BYTES!1G erb_ports=$ports erb_kills=$kills erb_seed=${ERB_SEED:-$RANDOM} erb_only=${ERB_ONLY:-}" \
		-M q35,nvdimm=on -object memory-backend-ram,id=memory,size=$PMEM_BYTES,share=on \
		-device nvdimm,memdev=memory,id=nvdimm \
		-netdev user,id=first,ipv6=off -device e1000,netdev=first,romfile= \
		-netdev user,id=second,net=10.0.3.0/24,ipv6=off -device virtio-net-pci,netdev=second,romfile= ||
		result=$?
	# The peer ends with its standard input.
	eval "exec ${PEER[1]}>&-"
	wait "$pid" || true
	return $result
}

setup_root
setup_rust run
vm_packages e2fsprogs xfsprogs ndctl iproute2 util-linux
dax_build
vm_suites "${SUITES[@]}"
kills=48
[ -z "${ERB_LONG:-}" ] || kills=500
failed=()
[ $# -gt 0 ] || set -- 6.1 6.12 6.16 newest
for series in "$@"; do
	kernel=$(dax_kernel "$series")
	[ -n "$kernel" ] || die "no linux-image-$series in ${SUITES[*]}"
	vm_kernel "$kernel"
	vm_initrd "$kernel"
	say "starting $kernel, for at most $GUEST_SECONDS_MAX s"
	dax_run "$kernel" || say "the guest did not end by itself"
	cp "$vm/log" "$vm/dax-$series.log"
	grep -qx 'guest: 0 failed' "$vm/log" || failed+=("$series ($kernel)")
done
[ ${#failed[@]} -eq 0 ] || die "not all is as it should be on ${failed[*]}: see $vm/dax-*.log"
say "all checks passed"
