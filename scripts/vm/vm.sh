# SPDX-License-Identifier: Apache-2.0 OR MIT
# shellcheck shell=bash
# vm.sh - another kernel than the one that runs, in an emulated machine. Sourced by the tests beside it,
# behind scripts/setup.sh; defines functions and does nothing by itself.
#
# The guest sees this machine's files read-only, below a tmpfs that takes what is written. It needs no
# KVM, and so shows what is right, not what is fast. All it needs lies under target/vm: a folder for
# each kernel, with what of Debian's packages is needed, unpacked and never installed.

# A guest that hangs is ended. Ten times what two cores take.
GUEST_SECONDS_MAX=${GUEST_SECONDS_MAX:-600}
# Where the kernels of all series are that are tried, for scripts that take a series.
# shellcheck disable=SC2034
SUITES=(bookworm bookworm-security bookworm-backports trixie-security trixie-backports)

vm=$(readlink -f "${CARGO_TARGET_DIR:-target}")/vm
mkdir -p "$vm"

# vm_packages PACKAGE...: what the host needs beside QEMU.
vm_packages() {
	vm_installs qemu-system-x86 busybox-static cpio kmod xz-utils "$@"
}

# vm_installs PACKAGE...: installs those that are missing.
vm_installs() {
	local package missing=()
	for package in "$@"; do
		installed "$package" || missing+=("$package")
	done
	[ ${#missing[@]} -gt 0 ] || return 0
	say "installing: ${missing[*]}"
	setup_apt update || say "apt-get update failed; going on with the lists that are there"
	setup_apt install --no-install-recommends "${missing[@]}" ||
		die "apt-get could not install: ${missing[*]}"
}

# vm_server LABEL: where this machine's apt gets Debian's packages of the archive with that label (Debian,
# Debian-Security), whatever suite it has of them; nothing if it has none.
vm_server() {
	# shellcheck disable=SC2016 # apt's own names
	apt-get indextargets --format '$(ORIGIN)|$(LABEL)|$(COMPONENT)|$(REPO_URI)' 'Created-By: Packages' |
		awk -F '|' -v label="$1" '$1 == "Debian" && $2 == label && $3 == "main" && !seen {
			seen = 1
			print $4
		}'
}

# vm_sources SUITE...: lines of sources.list for these suites, from the servers that this machine's apt
# knows. What only the archive of security updates has is left out where apt has no such server.
vm_sources() {
	local suite url security keys=/usr/share/keyrings/debian-archive-keyring.gpg
	[ -e "$keys" ] || die "$keys is missing: install debian-archive-keyring"
	url=${ERB_DEBIAN:-$(vm_server Debian)}
	security=${ERB_DEBIAN_SECURITY:-$(vm_server Debian-Security)}
	[ -n "$url" ] || die "this machine's apt has no server of Debian's packages that it has read: \
'apt-get update', with one in /etc/apt/sources.list.d, or give its address by ERB_DEBIAN=URL \
(and ERB_DEBIAN_SECURITY=URL)"
	[ -n "$security" ] || say "apt has no server of Debian's security updates; going on without: $*"
	for suite in "$@"; do
		case $suite in
		*-security) [ -z "$security" ] || echo "deb [arch=amd64 signed-by=$keys] $security $suite main" ;;
		*) echo "deb [arch=amd64 signed-by=$keys] $url $suite main" ;;
		esac
	done
}

# vm_suites SUITE...: from here on apt reads these suites of Debian, and nothing else of this machine's
# settings but where Debian's packages are. Its lists are kept for a day.
vm_suites() {
	local sources
	mkdir -p "$vm"/apt/{lists/partial,cache/archives/partial}
	sources=$(vm_sources "$@") || exit
	echo "$sources" >"$vm/apt/sources.list"
	cat >"$vm/apt/apt.conf" <<-END
		Dir::Etc::sourcelist "$vm/apt/sources.list";
		Dir::Etc::sourceparts "-";
		Dir::State::lists "$vm/apt/lists";
		Dir::Cache "$vm/apt/cache";
		APT::Sandbox::User "root";
		Acquire::Languages "none";
		Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
		Acquire::IndexTargets::deb::Contents-deb::DefaultEnabled "false";
	END
	export APT_CONFIG=$vm/apt/apt.conf
	if [ -n "$(find "$vm/apt/sources.read" -mmin -1440 2>/dev/null)" ] &&
		cmp -s "$vm/apt/sources.list" "$vm/apt/sources.read"; then
		return
	fi
	apt-get -qq update >&2 || say "apt-get update failed; going on with the lists that are there"
	cp "$vm/apt/sources.list" "$vm/apt/sources.read"
}

# vm_newest SERIES...: the newest kernel that apt offers of the first series that it has any of. A
# series is like 6.12; "newest" is any.
vm_newest() {
	local series found
	for series in "$@"; do
		series=${series/./\\.}
		[ "$series" != newest ] || series='[0-9]+\.[0-9]+'
		found=$(apt-cache pkgnames linux-image- |
			grep -E "^linux-image-$series\.[0-9.+a-z]+(-[0-9]+)?-amd64\$" | sort -V | tail -n 1)
		[ -z "$found" ] || break
	done
	echo "$found"
}

# vm_unpack FOLDER PACKAGE: and those packages of the same kernel that it is made of. From 6.19 on
# linux-image has nothing but dependencies.
vm_unpack() {
	local parts
	(cd "$1/deb" && apt-get -qq -o APT::Sandbox::User=root download "$2") ||
		die "apt cannot download $2: 'apt-cache search linux-image' says what there is"
	dpkg -x "$1/deb/$2"_*.deb "$1"
	parts=$(dpkg-deb -f "$1/deb/$2"_*.deb Depends | tr ',' '\n' |
		sed -n 's/^ *\(linux-[^ ]*\) (= [^)]*)$/\1/p')
	rm "$1/deb/$2"_*.deb
	for part in $parts; do
		[ -e "$1/deb/$part" ] && continue
		touch "$1/deb/$part"
		vm_unpack "$1" "$part"
	done
}

# vm_kernel PACKAGE: unpacked, with the list of its modules.
vm_kernel() {
	[ ! -e "$vm/$1/done" ] || return 0
	say "unpacking $1"
	rm -rf "${vm:?}/$1"
	mkdir -p "$vm/$1/deb"
	vm_unpack "$vm/$1" "$1"
	rm -r "$vm/$1/deb" "${vm:?}/$1/usr/share"
	# Debian 12 has the modules in /lib, 13 in /usr/lib, and so their kmod looks for them.
	if [ ! -d "$vm/$1/lib/modules" ]; then
		mkdir -p "$vm/$1/lib"
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

# The image lies in /boot, from 6.19 on with the modules.
kernel_image() {
	local image
	for image in "$vm/$1"/boot/vmlinuz-* "$vm/$1"/lib/modules/*/vmlinuz; do
		[ ! -e "$image" ] || echo "$image"
	done | head -n 1
}

# vm_initrd PACKAGE: busybox, init, and the modules without which the host's files cannot be seen.
vm_initrd() {
	local release module number=10 root=$vm/initrd
	release=$(kernel_release "$1")
	rm -rf "$root"
	mkdir -p "$root"/{bin,dev,proc,modules,lower,upper,root}
	cp /bin/busybox "$root/bin/"
	cp crates/tools/vm/guest/init "$root/init"
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

# vm_run PACKAGE SCRIPT MEMORY WORDS [QEMU-ARGUMENT...]: runs SCRIPT, a path from the sources' root, as
# the guest's root. WORDS are added to the kernel's command line, where erb_work= names target/vm. The
# guest's output goes to the terminal and to target/vm/log.
vm_run() {
	local kernel=$1 script=$2 memory=$3 words=$4 modules
	shift 4
	modules=$vm/$kernel/lib/modules/$(kernel_release "$kernel")
	timeout --kill-after=5 "$GUEST_SECONDS_MAX" nice -n 10 qemu-system-x86_64 \
		-accel tcg,thread=multi -cpu max -smp 2 -m "$memory" -nodefaults -no-reboot \
		-nographic -serial stdio -kernel "$(kernel_image "$kernel")" -initrd "$vm/initrd.gz" \
		-append "console=ttyS0 quiet panic=-1 mitigations=off sysrq_always_enabled erb_work=$vm erb_modules=$modules \
erb_run=$PWD/$script $words" \
		-fsdev local,id=root,path=/,security_model=none,readonly=on,multidevs=remap \
		-device virtio-9p-pci,fsdev=root,mount_tag=root "$@" </dev/null | sed -u 's/\r//g' | tee "$vm/log"
}
