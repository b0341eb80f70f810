# shellcheck shell=bash
# A temporary PostgreSQL: template, data, start, stop. The first argument of every function is the major version.

pg_name() { echo "pg$1"; }

pg_install() {
  need_postgres_15 # psql, and the user `postgres` that a root shell needs
  [ "$1" = 15 ] || fetch_npm_postgres "$1" "$RUN/cache/pg$1-$(npm_version "$1")"
}

pg_bin() {
  if [ "$1" = 15 ]; then echo /usr/lib/postgresql/15/bin; else echo "$RUN/cache/pg$1-$(npm_version "$1")/bin"; fi
}

# initdb takes a second, a copy of its result a tenth of that. Tests copy this directory too.
pg_template() {
  local bin template
  bin=$(pg_bin "$1")
  template="$RUN/cache/template-pg$1"
  [ -e "$template/PG_VERSION" ] && return 0
  rm -rf "$template"
  mkdir -p "$template"
  am_root && chown postgres "$template"
  chmod 700 "$template"
  as_server "$bin/initdb" -D "$template" -U postgres --auth=trust -E UTF8 --locale=C.UTF-8 --no-sync \
    >"$STATE/initdb-pg$1.log" 2>&1 || {
    tail -n 15 "$STATE/initdb-pg$1.log" >&2
    die "initdb of PostgreSQL $1 failed"
  }
}

# pg_durability DIR DURABLE(0|1): writes a separate file, so that a second `up` can change it while the server runs.
pg_durability() {
  if [ "$2" = 1 ]; then
    printf 'fsync = on\nfull_page_writes = on\n' >"$1/durability.conf"
  else
    # A killed process loses nothing: the kernel keeps what was written. Only a power failure would lose data.
    printf 'fsync = off\nfull_page_writes = off\n' >"$1/durability.conf"
  fi
  chmod a+r "$1/durability.conf"
}

pg_pid() { head -n 1 "$RUN/$(pg_name "$1")/data/postmaster.pid" 2>/dev/null || true; }
pg_running() { alive "$(pg_pid "$1")" "$RUN/$(pg_name "$1")/data"; }

pg_start() {
  local version=$1 durable=$2 dir bin port attempt
  dir="$RUN/$(pg_name "$version")"
  if pg_running "$version"; then
    pg_durability "$dir" "$durable"
    kill -HUP "$(pg_pid "$version")"
    return 0
  fi
  pg_install "$version"
  pg_template "$version"
  bin=$(pg_bin "$version")
  rm -rf "$dir"
  mkdir -p "$dir/s"
  cp -a "$RUN/cache/template-pg$version" "$dir/data"
  am_root && chown postgres "$dir" "$dir/s"
  pg_durability "$dir" "$durable"
  for attempt in 1 2 3; do
    port=$(free_port)
    pg_conf "$dir" "$port" >"$dir/server.conf"
    chmod a+r "$dir/server.conf"
    grep -q server.conf "$dir/data/postgresql.conf" ||
      printf "include '%s'\ninclude '%s'\n" "$dir/server.conf" "$dir/durability.conf" >>"$dir/data/postgresql.conf"
    if as_server "$bin/pg_ctl" -D "$dir/data" -l "$dir/log" -w -t 120 start >"$dir/ctl.log" 2>&1 </dev/null; then
      echo "$port" >"$dir/port"
      return 0
    fi
    say "PostgreSQL $version did not start on port $port (attempt $attempt)"
  done
  tail -n 15 "$dir/log" >&2
  die "PostgreSQL $version does not start; its log is $dir/log"
}

pg_conf() {
  cat <<CONF
port = $2
listen_addresses = '127.0.0.1'
unix_socket_directories = '$1/s'
wal_level = logical
max_wal_senders = 80
max_replication_slots = 80
max_connections = 200
max_prepared_transactions = 20
shared_buffers = 128MB
max_wal_size = 4GB
wal_sender_timeout = 60s
log_line_prefix = '%m [%p] %q%u@%d/%a '
log_checkpoints = off
autovacuum_naptime = 10s
CONF
}

pg_stop() {
  local pid
  pid=$(pg_pid "$1")
  pg_running "$1" || return 0
  kill -INT "$pid"
  # A walsender whose client is frozen delays a fast shutdown; the data of these servers are deleted anyway.
  wait_gone "$pid" 10 || kill -QUIT "$pid" 2>/dev/null || true
  wait_gone "$pid" 10 || kill -KILL "$pid" 2>/dev/null || true
}

pg_env() {
  local version=$1 dir port
  dir="$RUN/$(pg_name "$version")"
  port=$(cat "$dir/port")
  cat <<ENV
PG${version}_URL='postgresql://postgres@127.0.0.1:$port/postgres'
PG${version}_SOCKET='$dir/s'
PG${version}_PORT='$port'
PG${version}_PID='$(pg_pid "$version")'
PG${version}_DATA='$dir/data'
PG${version}_BIN='$(pg_bin "$version")'
PG${version}_TEMPLATE='$RUN/cache/template-pg$version'
PG${version}_LOG='$dir/log'
ENV
}
