#!/usr/bin/env bash
# A broker in KRaft mode at the host's address of network.sh; CLASSPATH has the jars. Prints a line of
# JSON for each step.
set -u
host=192.168.77.1
work=$(mktemp -d)
cd "$work" || exit 2
cat >server.properties <<C
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@$host:9093
listeners=PLAINTEXT://$host:9092,CONTROLLER://$host:9093
advertised.listeners=PLAINTEXT://$host:9092
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs=$work/logs
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
group.initial.rebalance.delay.ms=0
C
export JAVA_TOOL_OPTIONS="-Xmx512m -XX:+UseSerialGC -XX:TieredStopAtLevel=1"
report() { echo "{\"test\": \"kafka.$1\", \"result\": \"$2\"}"; }

java kafka.tools.StorageTool format -t MkU3OEVBNTcwNTJENDM2Qg -c server.properties \
    >>java.log 2>&1
java kafka.Kafka server.properties >>java.log 2>&1 &
broker=$!
for attempt in $(seq 300); do
    (exec 3<>/dev/tcp/$host/9092) 2>/dev/null && break
    sleep 0.2
done
[ "$attempt" -lt 300 ] && report broker accepts || report broker silent
java org.apache.kafka.tools.TopicCommand --bootstrap-server $host:9092 --create --topic t \
    --partitions 1 --replication-factor 1 >>java.log 2>&1
report topic "status $?"
seq 200 | timeout 90 java kafka.tools.ConsoleProducer --bootstrap-server $host:9092 \
    --topic t >>java.log 2>&1
report produce "status $?"
timeout 90 java kafka.tools.ConsoleConsumer --bootstrap-server $host:9092 --topic t \
    --from-beginning --max-messages 200 >received 2>>java.log
seq 200 | cmp -s - received && report consume "200 in order" || report consume "$(wc -l <received)"
kill $broker
wait $broker
rm -rf "$work"
