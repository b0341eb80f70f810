# shellcheck shell=bash
# PerfTest, RabbitMQ's own bench, from Maven Central, kept in the user's cache like the servers. Needs fetch.sh.

PERF_TEST_VERSION=2.22.1

# fetch_perf_test DIR: PerfTest's jars.
fetch_perf_test() {
  local dir=$1 work kept="perf-test-$PERF_TEST_VERSION"
  [ -e "$dir/.complete" ] && return 0
  command -v java >/dev/null || install_packages openjdk-17-jre-headless
  mkdir -p "$(dirname "$dir")"
  work=$(mktemp -d "$(dirname "$dir")/.fetch.XXXXXX")
  if [ -e "$USER_CACHE/$kept/.complete" ]; then
    cp -r "$USER_CACHE/$kept" "$work/lib"
  else
    command -v mvn >/dev/null || install_packages maven
    say "fetching PerfTest $PERF_TEST_VERSION"
    cp "$ROOT/scripts/lib/perf-test-pom.xml" "$work/pom.xml"
    mvn -q -B -f "$work/pom.xml" dependency:copy-dependencies -DincludeScope=runtime \
      -DoutputDirectory="$work/lib" >"$work/mvn.log" 2>&1 || {
      tail -n 15 "$work/mvn.log" >&2
      die "Maven could not fetch PerfTest $PERF_TEST_VERSION"
    }
    touch "$work/lib/.complete"
    keep_for_user "$work/lib" "$kept"
  fi
  rm -rf "$dir"
  mv -T "$work/lib" "$dir"
  rm -rf "$work"
}
