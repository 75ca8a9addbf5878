# SPDX-License-Identifier: Apache-2.0 OR MIT
# shellcheck shell=bash
# setup.sh - brings a Debian or Ubuntu machine to the point where ERB builds. Sourced by ./run and
# ./test; defines functions and does nothing by itself.
#
#   setup run     what building and the demonstration need
#   setup test    that, and what the checks and the client libraries of the tests need
#
# Asks nothing, needs no terminal, may be repeated: packages that are there are left alone, and with
# nothing missing the network is not touched. No service is started or enabled.

. "${BASH_SOURCE[0]%/*}/versions"
ERB_POLICY=/usr/sbin/policy-rc.d
ERB_POLICY_SAVED=/usr/sbin/policy-rc.d.before-erb

say() {
	printf 'setup: %s\n' "$*" >&2
}

# What a script that sources this one ends with is in die_code, if it is not 1.
die() {
	printf 'error: %s\n' "$*" >&2
	exit "${die_code:-1}"
}

have() {
	command -v "$1" >/dev/null 2>&1
}

installed() {
	[ "$(dpkg-query -W -f='${db:Status-Abbrev}' "$1" 2>/dev/null)" = "ii " ]
}

# version_at_least FOUND WANTED
version_at_least() {
	[ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" = "$2" ]
}

setup_root() {
	[ "$(id -u)" = 0 ] || die "root is needed (packages, network namespaces, BPF): run 'sudo $0'"
}

setup_processor() {
	[ "$(uname -m)" = x86_64 ] || die "ERB is built for x86_64 only, not for $(uname -m): nobody has \
run it there, and its order of memory accesses is proved on paper only (docs/internals/edges.md, E-4)"
}

setup_kernel() {
	local release
	release=$(uname -r)
	version_at_least "$release" "$ERB_KERNEL_MIN" || die "Linux $release is running, ERB needs \
$ERB_KERNEL_MIN or newer. Debian 12: linux-image-amd64 from bookworm-backports; Ubuntu 24.04: \
linux-generic-hwe-24.04; then reboot"
	[ -r /sys/kernel/btf/vmlinux ] || die "the kernel does not describe its types \
(/sys/kernel/btf/vmlinux is missing): use a kernel built with CONFIG_DEBUG_INFO_BTF, like Debian's"
}

# Name of a clang that the build scripts accept, or nothing.
setup_clang_found() {
	local name version
	for name in "clang-$ERB_CLANG_TRIED" clang; do
		version=$("$name" -dumpversion 2>/dev/null) || continue
		if version_at_least "$version" "$ERB_CLANG_MIN"; then
			echo "$name"
			return
		fi
	done
}

# Packages that must be there, one per line, as far as they are missing.
setup_missing() {
	local package
	[ -n "$(setup_clang_found)" ] || echo "clang-$ERB_CLANG_TRIED"
	setup_libclang_found || echo "libclang1-$ERB_CLANG_TRIED"
	have gcc || echo gcc
	have make || echo make
	have pkg-config || echo pkg-config
	have ip || echo iproute2
	have ethtool || echo ethtool
	have redis-server || echo redis-server
	have redis-benchmark || echo redis-tools
	for package in libc6-dev libelf-dev zlib1g-dev ca-certificates; do
		installed "$package" || echo "$package"
	done
	if [ "$1" = test ]; then
		have "clang-format-$ERB_CLANG_TRIED" || echo "clang-format-$ERB_CLANG_TRIED"
		setup_sanitizers_found || echo "libclang-rt-$ERB_CLANG_TRIED-dev"
		# What the tests believe of attached programs is the kernel's word, not ERB's.
		setup_bpftool_works || echo bpftool
		# Redis's own test suite: its interpreter, and what unpacks its source package.
		have tclsh || echo tcl
		# A client that `erb serve` did not bring along.
		have curl || echo curl
		have dpkg-source || echo dpkg-dev
		# What minimal systems lack: git for the commit, tools of namespaces, processes and file systems.
		have git || echo git
		have python3 || echo python3
		have nsenter && have unshare && have chrt || echo util-linux
		have ps || echo procps
		have mkfs.ext4 || echo e2fsprogs
		have mount || echo mount
		# Rules that reject and redirect, beside which clients are answered.
		have nft || echo nftables
	fi
}

# Ubuntu's is a shell script that looks for the one of the kernel that runs.
setup_bpftool_works() {
	bpftool version >/dev/null 2>&1
}

# Whether bindgen finds a libclang (libclang-cpp is another library).
setup_libclang_found() {
	[ -n "${LIBCLANG_PATH:-}" ] ||
		compgen -G '/usr/lib/llvm-*/lib/libclang[-.][0-9s]*' >/dev/null
}

# Whether clang finds the run-time library of its sanitizers.
setup_sanitizers_found() {
	local clang
	clang=$(setup_clang_found)
	[ -n "$clang" ] && [ -e "$("$clang" -print-file-name=libclang_rt.fuzzer-x86_64.a)" ] ||
		compgen -G '/usr/lib/llvm-*/lib/clang/*/lib/*/libclang_rt.fuzzer*' >/dev/null
}

# Packages that the tests use where a release of Debian or Ubuntu has them. What apt has must be there: a test
# without its program is a test that is skipped. What apt has not is told, and the tests say what they skip.
setup_missing_optional() {
	[ "$1" = test ] || return 0
	# Litmus tests of the order of memory accesses.
	have herd7 || echo herdtools7
	# A second implementation's view of our NVMe/TCP.
	have tshark || echo tshark
	# The dashboard as people see it.
	have chromium || echo chromium
	# Other kernels than the one that runs: emulator, user space, depmod, packed modules.
	have qemu-system-x86_64 || echo qemu-system-x86
	installed busybox-static || echo busybox-static
	have depmod || echo kmod
	have xz || echo xz-utils
	# The kernel module.
	have pahole || echo pahole
	# What of a package Debian itself would complain of; what systemd makes of its units.
	have lintian || echo lintian
	have systemd-analyze || echo systemd
	# Client libraries.
	python3 -c 'import ensurepip' 2>/dev/null || echo python3-venv
	have go || echo golang-go
	have javac || echo default-jdk-headless
	have mvn || echo maven
}

# Debian starts what it installs. A policy-rc.d that says no prevents it; one that was there comes
# back, also after an interruption.
setup_deny_services() {
	setup_restore_policy
	trap setup_restore_policy EXIT
	trap 'exit 130' INT
	trap 'exit 143' TERM HUP
	if [ -e "$ERB_POLICY" ]; then
		mv "$ERB_POLICY" "$ERB_POLICY_SAVED"
	fi
	printf '#!/bin/sh\n# Of ERB scripts/setup.sh, while it installs packages.\nexit 101\n' >"$ERB_POLICY"
	chmod 755 "$ERB_POLICY"
}

setup_restore_policy() {
	if grep -qs 'ERB scripts/setup.sh' "$ERB_POLICY"; then
		rm -f "$ERB_POLICY"
	fi
	if [ -e "$ERB_POLICY_SAVED" ]; then
		mv "$ERB_POLICY_SAVED" "$ERB_POLICY"
	fi
}

setup_apt() {
	DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1 apt-get -qq \
		-o DPkg::Lock::Timeout=300 -o Dpkg::Options::=--force-confold -o Dpkg::Use-Pty=0 "$@" \
		</dev/null >&2
}

# Whether apt can install the package.
setup_can_install() {
	apt-cache policy "$1" 2>/dev/null | grep 'Candidate:' | grep -qv '(none)'
}

# What to install for a missing package: itself, or what stands in for it.
setup_stand_in() {
	if setup_can_install "$1"; then
		echo "$1"
		return
	fi
	case $1 in
	"clang-$ERB_CLANG_TRIED") echo clang ;;
	"libclang1-$ERB_CLANG_TRIED") echo libclang-dev ;;
	bpftool) # Ubuntu
		if setup_can_install "linux-tools-$(uname -r)"; then
			echo "linux-tools-$(uname -r)"
		else
			echo linux-tools-generic
		fi
		;;
	"clang-format-$ERB_CLANG_TRIED") say "$1 cannot be had here: the C format will not be checked" ;;
	"libclang-rt-$ERB_CLANG_TRIED-dev") say "$1 cannot be had here: nothing runs with sanitizers" ;;
	*) echo "$1" ;;
	esac
}

# Whether apt has any package lists.
setup_has_lists() {
	setup_can_install libc6
}

setup_install() {
	setup_apt install --no-install-recommends "$@" || die "apt-get could not install: $*. Look at its message \
above; 'apt-get update && apt-get install $*' repeats it"
}

setup_packages() {
	local missing=() optional=() wanted=() package had_redis=no
	mapfile -t missing < <(setup_missing "$1")
	mapfile -t optional < <(setup_missing_optional "$1")
	[ $((${#missing[@]} + ${#optional[@]})) -gt 0 ] || return 0
	have apt-get || die "missing: ${missing[*]} ${optional[*]} (names of Debian's packages), and \
there is no apt-get here: install them in your system's way and start again"
	# A release that lacks an optional package does not ask the network in each run.
	if [ ${#missing[@]} -gt 0 ] || ! setup_has_lists; then
		setup_apt update || say "apt-get update failed; going on with the package lists that are there"
	fi
	for package in "${missing[@]}"; do
		wanted+=($(setup_stand_in "$package"))
	done
	for package in "${optional[@]}"; do
		if setup_can_install "$package"; then
			wanted+=("$package")
		else
			say "apt has no $package here: the tests that need it are skipped, and say so"
		fi
	done
	[ ${#wanted[@]} -gt 0 ] || return 0
	installed redis-server && had_redis=yes
	say "installing: ${wanted[*]}"
	setup_deny_services
	setup_install "${wanted[@]}"
	setup_restore_policy
	trap - EXIT INT TERM HUP
	[ $had_redis = yes ] || setup_disable_redis
	[ -n "$(setup_clang_found)" ] || die "no clang >= $ERB_CLANG_MIN, and apt has none: install \
clang-$ERB_CLANG_TRIED (https://apt.llvm.org) and start again"
	[ "$1" != test ] || setup_bpftool_works || say "bpftool does not work with Linux $(uname -r): the \
tests that ask it fail. On Ubuntu it is in linux-tools-$(uname -r)"
}

# A redis-server that only the lab needs shall not come up with the machine.
setup_disable_redis() {
	installed redis-server || return 0
	if have systemctl; then
		systemctl disable redis-server.service >/dev/null 2>&1 || true
	elif have update-rc.d; then
		update-rc.d redis-server disable >/dev/null 2>&1 || true
	fi
	say "redis-server.service is not enabled: the lab starts its own Redis"
}

# Finds cargo; under sudo also that of the user who called.
setup_rust() {
	local home version
	if ! have cargo; then
		PATH=$PATH:${HOME:-/root}/.cargo/bin
		if [ -n "${SUDO_USER:-}" ]; then
			home=$(getent passwd "$SUDO_USER" | cut -d: -f6)
			PATH=$PATH:$home/.cargo/bin
			# rustup looks for toolchains in root's home otherwise.
			[ ! -d "$home/.rustup" ] || export RUSTUP_HOME=${RUSTUP_HOME:-$home/.rustup}
		fi
		export PATH
	fi
	have cargo || die "no cargo in PATH: install Rust $ERB_RUST_MIN or newer (https://rustup.rs; \
Debian 13 also: apt-get install cargo) and start again"
	version=$(cargo --version 2>/dev/null | cut -d' ' -f2)
	[ -n "$version" ] || die "'cargo --version' fails: no toolchain is chosen; 'rustup default \
stable' chooses one"
	version_at_least "$version" "$ERB_RUST_MIN" || die "cargo $version is too old, ERB needs \
$ERB_RUST_MIN or newer: 'rustup update stable', or install from https://rustup.rs"
	[ "$1" != test ] || setup_rust_checks
}

setup_rust_checks() {
	if cargo fmt --version >/dev/null 2>&1 && cargo clippy --version >/dev/null 2>&1; then
		return
	fi
	if have rustup; then
		rustup component add rustfmt clippy >&2 || die "rustup could not add rustfmt and clippy"
	elif dpkg-query -S "$(command -v cargo)" >/dev/null 2>&1; then
		setup_apt install --no-install-recommends rustfmt rust-clippy || die "rustfmt and clippy \
are missing and apt-get has no rustfmt and rust-clippy: install Rust from https://rustup.rs"
	else
		die "rustfmt and clippy are missing: install them with your Rust toolchain"
	fi
}

# A disk that fills up while something is linked ends the linker by a signal that says nothing of it.
setup_space() {
	local target=${CARGO_TARGET_DIR:-target} wanted=$ERB_DISK_RUN free
	if [ "$1" = test ]; then
		[ ! -d "$target/debug" ] || return 0
		wanted=$ERB_DISK_TEST
	elif [ -d "$target/release" ]; then
		return 0
	fi
	free=$(df --output=avail --block-size=G . | tail -n 1 | tr -dc 0-9)
	[ "$free" -ge "$wanted" ] || die "$PWD has $free GB of room, building everything here needs \
$wanted: free some, or put the build elsewhere by CARGO_TARGET_DIR"
}

# setup run|test
setup() {
	setup_root
	setup_space "$1"
	setup_processor
	setup_kernel
	setup_packages "$1"
	setup_rust "$1"
}
