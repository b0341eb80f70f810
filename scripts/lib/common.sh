# shellcheck shell=bash
# Functions shared by the scripts: paths, messages, installation of missing packages.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
STATE="$ROOT/target/servers"
USER_CACHE="${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/postrider-servers"

say() { printf '%s\n' "$*" >&2; }
die() { say "error: $*"; exit 1; }
am_root() { [ "$(id -u)" = 0 ]; }

# install_packages PACKAGE…: installs with apt-get as root, else prints the command and exits.
install_packages() {
  [ $# -gt 0 ] || return 0
  if am_root && command -v apt-get >/dev/null; then
    say "installing $*"
    local log
    log=$(mktemp)
    if ! { DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@" ||
      { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@"; }; } \
      >"$log" 2>&1 </dev/null; then
      tail -n 15 "$log" >&2
      die "apt-get could not install: $*"
    fi
    rm -f "$log"
  else
    die "missing packages; run: sudo apt-get update && sudo apt-get install -y --no-install-recommends $*"
  fi
}

# A machine that installs PostgreSQL only for the tests should not start the default cluster.
without_default_cluster() {
  if am_root && [ ! -e /etc/postgresql-common/createcluster.conf ]; then
    mkdir -p /etc/postgresql-common
    printf 'create_main_cluster = false\n' >/etc/postgresql-common/createcluster.conf
  fi
}

need_postgres_15() {
  [ -x /usr/lib/postgresql/15/bin/postgres ] && [ -x /usr/lib/postgresql/15/bin/psql ] && return 0
  without_default_cluster
  install_packages postgresql-15
}

# What compiles the crates with C inside: librdkafka (ssl, zstd, zlib), jemalloc, ring.
need_compiler() {
  local missing=()
  command -v cc >/dev/null && command -v c++ >/dev/null && command -v make >/dev/null || missing+=(build-essential)
  command -v pkg-config >/dev/null || missing+=(pkg-config)
  [ -e /usr/include/zlib.h ] || missing+=(zlib1g-dev)
  [ -e /usr/include/openssl/ssl.h ] || missing+=(libssl-dev)
  command -v perl >/dev/null || missing+=(perl)
  command -v curl >/dev/null || missing+=(curl ca-certificates)
  install_packages "${missing[@]}"
}

# promtool, which checks config/alerts.yml: Debian's package is unpacked here, since its installation starts a server.
need_promtool() {
  local tools="$ROOT/target/tools" work
  command -v promtool >/dev/null && return 0
  [ -x "$tools/usr/bin/promtool" ] && return 0
  command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null ||
    die "promtool is missing: install Prometheus, or put promtool into $tools/usr/bin"
  say "fetching promtool"
  mkdir -p "$tools"
  work=$(mktemp -d)
  (cd "$work" && { apt-get download prometheus || { apt-get update && apt-get download prometheus; }; }) \
    >"$work/log" 2>&1 </dev/null && dpkg-deb -x "$work"/prometheus_*.deb "$tools" || {
    tail -n 15 "$work/log" >&2
    die "apt-get could not fetch: prometheus"
  }
  rm -rf "$work"
}

# cargo-deny, which checks the dependencies. A build takes some minutes, so the binary is also kept in the user's cache.
CARGO_DENY_VERSION=0.20.2
need_cargo_deny() {
  local tools="$ROOT/target/tools" kept="$USER_CACHE/cargo-deny-$CARGO_DENY_VERSION"
  PATH="$PATH:$tools/bin"
  command -v cargo-deny >/dev/null && return 0
  mkdir -p "$tools/bin"
  if [ -x "$kept" ]; then
    cp "$kept" "$tools/bin/cargo-deny"
    return 0
  fi
  say "building cargo-deny $CARGO_DENY_VERSION"
  # Not optimised: building the program takes longer than all that it does.
  cargo install cargo-deny --version "$CARGO_DENY_VERSION" --locked --debug --root "$tools"
  # A full or read-only home directory is not an error.
  { mkdir -p "$USER_CACHE" && cp "$tools/bin/cargo-deny" "$kept.$$" && mv "$kept.$$" "$kept"; } 2>/dev/null || true
}

# llvm TOOL…: runs llvm-profdata or llvm-cov. Only these get the library path: rustc has its own library.
llvm() { LD_LIBRARY_PATH="$LLVM/../lib:$ROOT/target/tools/usr/lib/$(uname -m)-linux-gnu" "$LLVM/$1" "${@:2}"; }

# The directory LLVM has both tools in the version of rustc: from rustup, else from Debian's package, unpacked here.
need_llvm() {
  local tools="$ROOT/target/tools" host version work
  host=$(rustc -vV | sed -n 's/^host: //p')
  version=$(rustc -vV | sed -n 's/^LLVM version: \([0-9]*\).*/\1/p')
  LLVM="$(rustc --print sysroot)/lib/rustlib/$host/bin"
  [ -x "$LLVM/llvm-cov" ] && return 0
  LLVM="$tools/usr/lib/llvm-$version/bin"
  [ -x "$LLVM/llvm-cov" ] && return 0
  command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null ||
    die "llvm-cov is missing; run: rustup component add llvm-tools"
  say "fetching LLVM $version"
  mkdir -p "$tools"
  work=$(mktemp -d)
  (cd "$work" && apt-get download "llvm-$version" "libllvm$version" &&
    for package in *.deb; do dpkg-deb -x "$package" "$tools"; done) >"$work/log" 2>&1 </dev/null || {
    tail -n 15 "$work/log" >&2
    die "apt-get could not fetch llvm-$version; run: rustup component add llvm-tools"
  }
  rm -rf "$work"
}

# The browser in which the operators' page is tested, its driver, and fonts for its pictures.
need_chromium() {
  local missing=()
  command -v chromium >/dev/null || missing+=(chromium)
  command -v chromedriver >/dev/null || missing+=(chromium-driver)
  [ -e /usr/share/fonts/truetype/dejavu/DejaVuSans.ttf ] || missing+=(fonts-dejavu-core)
  install_packages "${missing[@]}"
}

# The pooler that one test uses. The service of its package is not started.
need_pgbouncer() {
  PATH="$PATH:/usr/sbin" command -v pgbouncer >/dev/null || RUNLEVEL=1 install_packages pgbouncer
}

# The tools that compile and run the programs of docs/consumers-without-toolkit.md, docs/sql/consumers.md,
# docs/sql/inbox-programs.md and docs/formats/claim-check.md, the drivers for PostgreSQL of the middle two, and the
# clients of S3 of the last. Those for Rust and Go are in Cargo.lock and in each go.sum below tests/consumers.
TYPESCRIPT_VERSION=5.9.3
NODE_TYPES_VERSION=20.19.43
NODE_PG_VERSION=8.23.1
PSYCOPG_VERSION=3.3.9
CLOUDEVENTS_VERSION=2.2.0
JDBC_VERSION=42.7.14
NODE_S3_VERSION=3.980.0
BOTO_VERSION=1.40.0
JAVA_S3_VERSION=2.31.78
need_languages() {
  local missing=() tools="$ROOT/target/tools"
  command -v python3 >/dev/null || missing+=(python3)
  python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
  command -v javac >/dev/null && command -v java >/dev/null || missing+=(openjdk-17-jdk-headless)
  command -v mvn >/dev/null || [ -e "$tools/java/postgresql.jar" ] || missing+=(maven)
  command -v go >/dev/null || missing+=(golang-go)
  command -v node >/dev/null && command -v npm >/dev/null || missing+=(nodejs npm)
  install_packages "${missing[@]}"
  mkdir -p "$tools"
  need_node_packages "$tools"
  need_python_packages "$tools"
  need_jdbc "$tools"
  need_java_s3 "$tools"
  need_go_modules
}

# All in one call: npm removes what is installed and not named.
need_node_packages() {
  local packages=("typescript@$TYPESCRIPT_VERSION" "@types/node@$NODE_TYPES_VERSION" "pg@$NODE_PG_VERSION"
    "@types/pg@$NODE_PG_VERSION" "@aws-sdk/client-s3@$NODE_S3_VERSION") marker="$1/node_modules/.postrider"
  [ "$(cat "$marker" 2>/dev/null)" = "${packages[*]}" ] && return 0
  say "fetching ${packages[*]}"
  npm install --silent --no-audit --no-fund --no-save --prefix "$1" "${packages[@]}" >&2 ||
    die "npm could not fetch: ${packages[*]}"
  echo "${packages[*]}" >"$marker"
}

# The driver for PostgreSQL, and the libraries that read what Postrider publishes in another format.
need_python_packages() {
  local marker="$1/python/.postrider" packages=("psycopg[binary]==$PSYCOPG_VERSION"
    "cloudevents==$CLOUDEVENTS_VERSION" "boto3==$BOTO_VERSION")
  [ "$(cat "$marker" 2>/dev/null)" = "${packages[*]}" ] && return 0
  say "fetching ${packages[*]}"
  { python3 -m venv --clear "$1/python" &&
    "$1/python/bin/python3" -m pip install --quiet --disable-pip-version-check "${packages[@]}"; } >&2 ||
    die "pip could not fetch: ${packages[*]}"
  echo "${packages[*]}" >"$marker"
}

need_jdbc() {
  local artifact="org.postgresql:postgresql:$JDBC_VERSION"
  [ -e "$1/java/postgresql.jar" ] && [ "$(cat "$1/java/version" 2>/dev/null)" = "$JDBC_VERSION" ] && return 0
  say "fetching $artifact"
  mvn -q -B dependency:copy "-Dartifact=$artifact" "-DoutputDirectory=$1/java" -Dmdep.stripVersion=true >&2 ||
    die "Maven could not fetch: $artifact"
  echo "$JDBC_VERSION" >"$1/java/version"
}

# The client with all that it needs.
need_java_s3() {
  local dir="$1/java-s3"
  [ "$(cat "$dir/version" 2>/dev/null)" = "$JAVA_S3_VERSION" ] && return 0
  say "fetching software.amazon.awssdk:s3:$JAVA_S3_VERSION"
  rm -rf "$dir"
  mvn -q -B -f "$ROOT/scripts/lib/s3-pom.xml" dependency:copy-dependencies "-Ds3.version=$JAVA_S3_VERSION" \
    -DincludeScope=runtime "-DoutputDirectory=$dir" >&2 || die "Maven could not fetch: software.amazon.awssdk:s3"
  echo "$JAVA_S3_VERSION" >"$dir/version"
}

need_go_modules() {
  local folder
  for folder in claims groups inbox; do
    (cd "$ROOT/tests/consumers/$folder/go" && go mod download) >&2 ||
      die "go could not fetch the modules of tests/consumers/$folder/go/go.mod"
  done
}

need_rust() {
  [ -n "${HOME:-}" ] && [ -d "$HOME/.cargo/bin" ] && PATH="$HOME/.cargo/bin:$PATH"
  command -v cargo >/dev/null ||
    die "Rust is missing: install it by rustup (rustup.rs has the line), then run this again"
}

# free_port: prints a port below the kernel's ephemeral range, which no outgoing connection takes during a restart.
free_port() {
  local port
  for _ in $(seq 50); do
    port=$((20000 + (RANDOM * 32768 + RANDOM) % 12000))
    if ! (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
      echo "$port"
      return 0
    fi
  done
  die "no free port between 20000 and 32000"
}

# alive PID WORD: whether the process runs and its command line contains WORD (the pid may have been reused).
alive() {
  [ -n "${1:-}" ] && kill -0 "$1" 2>/dev/null && tr '\0' ' ' <"/proc/$1/cmdline" 2>/dev/null | grep -qF -- "$2"
}

# wait_gone PID SECONDS
wait_gone() {
  local i
  for ((i = 0; i < $2 * 10; i++)); do
    kill -0 "$1" 2>/dev/null || return 0
    sleep 0.1
  done
  return 1
}

# as_server COMMAND…: runs a command as a user that PostgreSQL accepts.
as_server() {
  if am_root; then
    (cd / && exec runuser -u postgres -- "$@")
  else
    "$@"
  fi
}
