#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# load-test.sh - loads ERB's BPF programs into another kernel than the one that runs, and lets a
# boosted Redis answer there: does ERB work on the oldest kernel it names (docs/operating/kernels.md)?
#
#   scripts/vm/load-test.sh [PACKAGE]
#
# PACKAGE is Debian's of the kernel, like linux-image-6.12.100+deb12-amd64; without it, the oldest
# 6.12 that apt offers. It is downloaded and unpacked under target/vm, never installed. Installed
# are qemu-system-x86, busybox-static, cpio and kmod, if they are missing.
#
# The guest is emulated (no KVM needed: correctness, not speed), sees this machine's files
# read-only and has no network. Needs root, Debian on x86-64, 1 GB of disk and 2 GB of memory; takes
# a minute beyond the build. Exit code 0: all was loaded and the data path answered GETs.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
# shellcheck source=scripts/setup.sh
. scripts/setup.sh
# shellcheck source=scripts/vm/vm.sh
. scripts/vm/vm.sh

oldest_kernel() {
	apt-cache pkgnames linux-image-6.12. | grep -E '^linux-image-6\.12\.[0-9+a-z]+-amd64$' |
		sort -V | head -n 1
}

# out_dir CRATE: where its build script put what it made.
out_dir() {
	sed -n "/\"reason\":\"build-script-executed\"/ s/.*#$1@.*\"out_dir\":\"\([^\"]*\)\".*/\1/p" \
		"$vm/build.json"
}

# The programs erb and erb-lab, the objects in them, and a loader that is linked against the same libbpf.
vm_build() {
	local libbpf
	cargo build --release --locked --package erb --package erb-tools --message-format=json >"$vm/build.json"
	libbpf=$(out_dir libbpf-sys)
	rm -rf "$vm/objects"
	mkdir "$vm/objects"
	cp "$(out_dir erb-datapath)"/*.bpf.o "$(out_dir erb-bench)"/*.bpf.o "$vm/objects/"
	cp "${CARGO_TARGET_DIR:-target}"/release/{erb,erb-lab} "$vm/"
	cc -O1 -Wall -Werror -I "$libbpf/include" scripts/vm/load.c "$libbpf/libbpf.a" -lelf -lz \
		-o "$vm/load"
}

setup_root
setup_rust run
vm_packages
kernel=${1:-$(oldest_kernel)}
[ -n "$kernel" ] || die "apt offers no linux-image-6.12: add Debian's backports or security suite"
vm_kernel "$kernel"
vm_initrd "$kernel"
vm_build
say "starting $kernel, for at most $GUEST_SECONDS_MAX s"
vm_run "$kernel" scripts/vm/guest.sh 2G "" -M q35 || die "the guest did not end by itself; what it said is in $vm/log"
grep -qx 'guest: 0 failed' "$vm/log" || die "not everything works on $kernel: see $vm/log"
say "everything works on $kernel"
