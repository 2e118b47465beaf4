# What scripts/postgres, scripts/mariadb and scripts/kafka share. Sourced, never run.
# Sets `root` (this checkout), `lapse_home` and `cache`; defines the functions below.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
lapse_home=${LAPSE_HOME:-$root/.lapse}
[[ $lapse_home == /* ]] || lapse_home=$PWD/$lapse_home
cache=${XDG_CACHE_HOME:-${HOME:-/nonexistent}/.cache}/lapse
mkdir -p "$cache" 2>/dev/null && [ -w "$cache" ] || cache=$lapse_home/cache

say() { echo "${0##*/}: $*" >&2; }
die() { say "$2"; exit "$1"; }

# Nothing but a number that fits in a file name: the same path gives the same number on every system.
path_number() { printf '%s' "$1" | cksum | cut -d' ' -f1; }

answers() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# Below the ports that systems hand out by themselves (32768 and up), so that no passing connection takes it meanwhile.
free_port() {
  local port
  for _ in {1..100}; do
    port=$((20000 + (RANDOM << 15 | RANDOM) % 12000))
    answers "$port" || { echo "$port"; return; }
  done
  die 1 "no free port found between 20000 and 32000"
}

# wait_until SECONDS COMMAND...: polls ten times a second; fails when the time is over.
wait_until() {
  local rounds=$(($1 * 10)); shift
  until "$@"; do
    ((rounds-- > 0)) || return 1
    sleep 0.1
  done
}

# A zombie counts as gone: where process 1 reaps nothing, it stays for ever.
gone() { ! kill -0 "$1" 2>/dev/null || grep -qs '^State:.Z' "/proc/$1/status"; }

# One start, stop or kill of a service at a time. The lock is on descriptor 9: servers are started with 9>&-.
lock() {
  mkdir -p "$lapse_home"
  exec 9>"$lapse_home/$1.lock"
  if command -v flock >/dev/null; then flock -w 120 9 || die 1 "another ${0##*/} has held $lapse_home/$1.lock for two minutes"; fi
}

# borrow SERVICE [FLAG...]: starts the one for tests unless it is running or given by the environment; give_back stops what
# borrow has started.
borrowed=()
borrow() {
  local was; was=$("$root/scripts/$1" status || true)
  [ "$was" != stopped ] || borrowed+=("$1")
  "$root/scripts/$1" start "${@:2}" >/dev/null
}
give_back() {
  local service
  for service in "${borrowed[@]}"; do "$root/scripts/$service" stop --name test || true; done
}

# Database servers refuse to run as root, so root runs them as nobody.
nobody=65534
unprivileged() { if [ "$(id -u)" = 0 ]; then setpriv --reuid=$nobody --regid=$nobody --clear-groups "$@"; else "$@"; fi; }
reachable() { (cd / && unprivileged test -x "$1"); }

# find_ground SHORT: sets `ground`, a directory where nobody can get to: .lapse, or one in /tmp when the checkout is out of
# nobody's reach (below /root).
find_ground() {
  mkdir -p "$lapse_home"
  ground=$lapse_home
  if reachable "$ground"; then return; fi
  ground=${TMPDIR:-/tmp}; reachable "$ground" || ground=/tmp
  ground=$ground/lapse-$1-$(path_number "$lapse_home")
}

# make_ground SERVICE END: .lapse/SERVICE.place names a ground in /tmp. `.lapse` thrown away means a new beginning: what a
# former one left there goes too, its servers ended by END.
make_ground() {
  [ "$ground" != "$lapse_home" ] || return 0
  if [ -e "$ground" ] && [ ! -O "$ground" ]; then die 1 "$ground belongs to somebody else: set TMPDIR to another directory"; fi
  if [ ! -e "$lapse_home/$1.place" ] && [ -d "$ground" ]; then
    "$2"
    rm -rf "$ground"
  fi
  mkdir -p -m 0711 "$ground"
  echo "$ground" >"$lapse_home/$1.place"
}

# The words that put apt-get within reach: nothing for root, sudo where it asks no password; fails where neither is there.
as_admin() {
  command -v apt-get >/dev/null || return 1
  if [ "$(id -u)" = 0 ]; then echo env; else sudo -n true 2>/dev/null && echo "sudo -n env"; fi
}

apt_install() {
  local admin
  admin=$(as_admin) || return 1
  say "installing $* with apt-get"
  local get=($admin DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300)
  { "${get[@]}" install -y --no-install-recommends "$@" ||
    { "${get[@]}" update && "${get[@]}" install -y --no-install-recommends "$@"; }; } >/dev/null </dev/null
}
