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

# A guest that hangs is ended. Ten times what two cores take.
GUEST_SECONDS_MAX=600

vm_packages() {
	local package missing=()
	for package in qemu-system-x86 busybox-static cpio kmod; do
		installed "$package" || missing+=("$package")
	done
	[ ${#missing[@]} -gt 0 ] || return 0
	say "installing: ${missing[*]}"
	setup_apt update || say "apt-get update failed; going on with the lists that are there"
	setup_apt install --no-install-recommends "${missing[@]}" ||
		die "apt-get could not install: ${missing[*]}"
}

oldest_kernel() {
	apt-cache pkgnames linux-image-6.12. | grep -E '^linux-image-6\.12\.[0-9+a-z]+-amd64$' |
		sort -V | head -n 1
}

# vm_kernel PACKAGE: unpacked, with the list of its modules.
vm_kernel() {
	[ ! -e "$vm/$1/done" ] || return 0
	rm -rf "${vm:?}/$1"
	mkdir -p "$vm/$1/deb"
	(cd "$vm/$1/deb" && apt-get -qq -o APT::Sandbox::User=root download "$1") ||
		die "apt cannot download $1: 'apt-cache search linux-image-6.12' says what there is"
	dpkg -x "$vm/$1"/deb/*.deb "$vm/$1"
	rm -r "$vm/$1/deb"
	# Debian 12 has the modules in /lib, 13 in /usr/lib, and so their kmod looks for them.
	if [ ! -d "$vm/$1/lib/modules" ]; then
		mkdir "$vm/$1/lib"
		mv "$vm/$1/usr/lib/modules" "$vm/$1/lib/"
	fi
	mkdir -p "$vm/$1/usr/lib"
	ln -sfn ../../lib/modules "$vm/$1/usr/lib/modules"
	depmod -b "$vm/$1" "$(kernel_release "$1")"
	touch "$vm/$1/done"
}

kernel_release() {
	basename "$vm/$1"/lib/modules/*
}

# vm_initrd PACKAGE: busybox, init, and the modules without which the host's files cannot be seen.
vm_initrd() {
	local release module number=10 root=$vm/initrd
	release=$(kernel_release "$1")
	rm -rf "$root"
	mkdir -p "$root"/{bin,dev,proc,modules,lower,upper,root}
	cp /bin/busybox "$root/bin/"
	cp scripts/vm/init "$root/init"
	for module in virtio_pci 9pnet_virtio 9p overlay; do
		modprobe -d "$vm/$1" -S "$release" --show-depends "$module" |
			sed -n 's/^insmod \([^ ]*\).*/\1/p'
	done | awk '!seen[$0]++' | while read -r module; do
		cp "$module" "$root/modules/$number-$(basename "$module")"
		number=$((number + 1))
	done
	[ -z "$(ls "$root"/modules/*.xz 2>/dev/null)" ] || xz -d "$root"/modules/*.xz
	(cd "$root" && find . | cpio --quiet -o -H newc | gzip -1) >"$vm/initrd.gz"
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

# vm_run PACKAGE: the guest's output goes to the terminal and to target/vm/log.
vm_run() {
	local modules
	modules=$vm/$1/lib/modules/$(kernel_release "$1")
	timeout --kill-after=5 "$GUEST_SECONDS_MAX" nice -n 10 qemu-system-x86_64 \
		-M q35 -accel tcg,thread=multi -cpu max -smp 2 -m 2G -nodefaults -no-reboot \
		-nographic -serial stdio -kernel "$vm/$1"/boot/vmlinuz-* -initrd "$vm/initrd.gz" \
		-append "console=ttyS0 quiet panic=-1 mitigations=off erb_work=$vm erb_modules=$modules \
erb_run=$PWD/scripts/vm/guest.sh" \
		-fsdev local,id=root,path=/,security_model=none,readonly=on,multidevs=remap \
		-device virtio-9p-pci,fsdev=root,mount_tag=root </dev/null | tr -d '\r' | tee "$vm/log"
}

setup_root
setup_rust run
vm_packages
vm=$(readlink -f "${CARGO_TARGET_DIR:-target}")/vm
mkdir -p "$vm"
kernel=${1:-$(oldest_kernel)}
[ -n "$kernel" ] || die "apt offers no linux-image-6.12: add Debian's backports or security suite"
vm_kernel "$kernel"
vm_initrd "$kernel"
vm_build
say "starting $kernel, for at most $GUEST_SECONDS_MAX s"
vm_run "$kernel" || die "the guest did not end by itself; what it said is in $vm/log"
grep -qx 'guest: 0 failed' "$vm/log" || die "not everything works on $kernel: see $vm/log"
say "everything works on $kernel"
