# shellcheck shell=bash
# Debezium on Kafka Connect for the bench, from Maven Central, kept in the user's cache like the servers.
# Needs fetch.sh.

CONNECT_VERSION=4.3.1
DEBEZIUM_VERSION=3.7.0.Final

# fetch_connect DIR: Connect's jars in DIR/lib, the connector in DIR/plugins.
fetch_connect() {
  local dir=$1 work kept="connect-$CONNECT_VERSION-debezium-$DEBEZIUM_VERSION"
  [ -e "$dir/.complete" ] && return 0
  command -v java >/dev/null || install_packages openjdk-17-jre-headless
  mkdir -p "$(dirname "$dir")"
  work=$(mktemp -d "$(dirname "$dir")/.fetch.XXXXXX")
  if [ -e "$USER_CACHE/$kept/.complete" ]; then
    cp -r "$USER_CACHE/$kept" "$work/connect"
  else
    command -v mvn >/dev/null || install_packages maven
    say "fetching Kafka Connect $CONNECT_VERSION and Debezium $DEBEZIUM_VERSION"
    mkdir -p "$work/connect/plugins" "$work/plugin"
    cp "$ROOT/scripts/lib/connect-pom.xml" "$work/pom.xml"
    { mvn -q -B -f "$work/pom.xml" dependency:copy-dependencies -DincludeScope=runtime \
        -DoutputDirectory="$work/connect/lib" &&
      mvn -q -B -f "$work/pom.xml" dependency:copy -DoutputDirectory="$work/plugin" \
        -Dartifact="io.debezium:debezium-connector-postgres:$DEBEZIUM_VERSION:tar.gz:plugin" &&
      tar -xzf "$work/plugin/"*.tar.gz -C "$work/connect/plugins"; } >"$work/mvn.log" 2>&1 || {
      tail -n 15 "$work/mvn.log" >&2
      die "Maven could not fetch Debezium"
    }
    touch "$work/connect/.complete"
    keep_for_user "$work/connect" "$kept"
  fi
  rm -rf "$dir"
  mv -T "$work/connect" "$dir"
  rm -rf "$work"
}
