# shellcheck shell=bash
# A temporary Kafka broker in KRaft mode (broker and controller in one process). All of its files are in DIR.

kafka_lib() { echo "$RUN/cache/kafka-$KAFKA_VERSION"; }
kafka_pid() { cat "$1/pid" 2>/dev/null || true; }
kafka_running() { alive "$(kafka_pid "$1")" "$1/server.properties"; }

# Messages up to 10 MB by default, because tests set max.message.bytes of a topic.
kafka_properties() {
  cat <<CONF
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=127.0.0.1:$3
listeners=PLAINTEXT://127.0.0.1:$2,CONTROLLER://127.0.0.1:$3
advertised.listeners=PLAINTEXT://127.0.0.1:$2,CONTROLLER://127.0.0.1:$3
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs=$1/data
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
CONF
}

# Sizes for tests, unless the variables of Kafka's own scripts are set.
read -ra JAVA_FLAGS <<<"${KAFKA_HEAP_OPTS:--Xms256m -Xmx1g} ${KAFKA_JVM_PERFORMANCE_OPTS:-}"
JAVA_FLAGS+=(-Dorg.slf4j.simpleLogger.showDateTime=true)

# kafka_start DIR [PORT CONTROLLER_PORT]: formats new storage; a stopped broker is started again on the same ports.
kafka_start() {
  local dir=$1 port=${2:-} controller=${3:-} uuid i
  kafka_running "$dir" && return 0
  fetch_kafka "$(kafka_lib)"
  command -v java >/dev/null || install_packages openjdk-17-jre-headless
  mkdir -p "$dir"
  if [ ! -e "$dir/data/meta.properties" ]; then
    port=${port:-$(free_port)}
    controller=${controller:-$(free_port)}
    kafka_properties "$dir" "$port" "$controller" >"$dir/server.properties"
    echo "$port" >"$dir/port"
    uuid=A$(head -c 16 /dev/urandom | base64 | tr '+/' '-_' | head -c 21)
    java "${JAVA_FLAGS[@]}" -cp "$(kafka_lib)/*" kafka.tools.StorageTool format \
      --standalone -t "$uuid" -c "$dir/server.properties" \
      >"$dir/format.log" 2>&1 || {
      tail -n 15 "$dir/format.log" >&2
      die "Kafka's storage could not be formatted"
    }
  fi
  : >"$dir/log"
  (
    # The broker inherits neither the terminal nor the process group nor the descriptors of this shell.
    cd "$dir" && exec setsid java "${JAVA_FLAGS[@]}" \
      -cp "$(kafka_lib)/*" kafka.Kafka "$dir/server.properties" >>"$dir/log" 2>&1 </dev/null
  ) &
  echo $! >"$dir/pid"
  for ((i = 0; i < 1200; i++)); do
    grep -q 'Kafka Server started' "$dir/log" && return 0
    kill -0 "$(kafka_pid "$dir")" 2>/dev/null || break
    sleep 0.1
  done
  tail -n 15 "$dir/log" >&2
  die "Kafka does not start; its log is $dir/log"
}

kafka_stop() {
  local pid
  kafka_running "$1" || return 0
  pid=$(kafka_pid "$1")
  kill -CONT "$pid" 2>/dev/null || true
  kill -TERM "$pid"
  wait_gone "$pid" 15 || kill -KILL "$pid" 2>/dev/null || true
}

kafka_env() {
  cat <<ENV
KAFKA_BROKERS='127.0.0.1:$(cat "$1/port")'
KAFKA_PID='$(kafka_pid "$1")'
KAFKA_LIB='$(kafka_lib)'
KAFKA_LOG='$1/log'
ENV
}
