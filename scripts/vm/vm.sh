# SPDX-License-Identifier: Apache-2.0 OR MIT
# shellcheck shell=bash
# vm.sh - where Debian's kernels come from. Sourced by debug-kernel.sh, behind scripts/setup.sh; defines functions and
# does nothing by itself. All that is made lies under target/vm, where `erb lab vm` has its kernels.

# Where the kernels of all series are that are tried.
# shellcheck disable=SC2034
SUITES=(bookworm bookworm-security bookworm-backports trixie-security trixie-backports)

vm=$(readlink -f "${CARGO_TARGET_DIR:-target}")/vm
mkdir -p "$vm"

# vm_packages PACKAGE...: what the host needs beside QEMU.
vm_packages() {
	vm_installs qemu-system-x86 busybox-static kmod xz-utils "$@"
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
