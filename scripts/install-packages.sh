#!/usr/bin/env bash
# install-packages.sh GROUP...: installs what is missing of the groups of packages.txt.
source "$(dirname "$0")/common.sh"

if ! command -v apt-get >/dev/null; then
  for program in cmake ninja python3; do
    command -v "$program" >/dev/null ||
      die "$program is missing; install the equivalents of the packages in scripts/packages.txt"
  done
  exit 0
fi

wanted=$(while read -r group package minimum; do
  for asked in "$@"; do
    if [ "$group" = "$asked" ]; then echo "$package $minimum"; fi
  done
done <"$root/scripts/packages.txt")

# Prints the packages that are absent or too old.
missing() {
  local -A have=()
  local name status version package minimum
  while read -r name status version; do
    if [ "$status" = installed ]; then have[$name]=$version; fi
  done < <(dpkg-query -W -f '${Package} ${db:Status-Status} ${Version}\n' \
    $(cut -d ' ' -f 1 <<<"$wanted") 2>/dev/null || true)
  while read -r package minimum; do
    # The epoch (1:14.0-55) is Debian's own and says nothing about the upstream version.
    if [ -z "${have[$package]:-}" ] ||
      dpkg --compare-versions "${have[$package]#*:}" lt "$minimum"; then
      echo "$package"
    fi
  done <<<"$wanted"
}

packages=$(missing)
if [ -z "$packages" ]; then exit 0; fi

say "Installing Debian packages:" $packages
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null ||
    die "neither root nor sudo; ask an administrator for: apt-get install" $packages
  as_root=(sudo)
fi
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
  apt-get install -y -qq --no-install-recommends $packages </dev/null

packages=$(missing)
if [ -n "$packages" ]; then
  die "still missing or too old (Debian 12 or later is needed):" $packages
fi
