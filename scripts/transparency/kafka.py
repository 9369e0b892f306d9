"""A Kafka broker that advertises the host's own address, with a producer and a consumer.

The environment variable KAFKA names a directory with the jars of org.apache.kafka:kafka_2.13 and
org.apache.kafka:kafka-tools and of all that they need; docs/transparency.md shows how to get them.
"""

import os
from pathlib import Path

from suite import HERE, SetupError, Skipped, Suite


class Kafka(Suite):
    """One broker in KRaft mode and 200 messages."""

    timeout_seconds = 600
    # A broker that fails natively says nothing about tacit, but is compared as it is.
    passes_natively = False

    def prepare(self):
        if not os.environ.get("KAFKA"):
            raise Skipped("KAFKA is not set to a directory with Kafka's jars; fix: see "
                          "docs/transparency.md, then run "
                          "KAFKA=DIRECTORY make transparency SUITE=kafka")
        self.jars = Path(os.environ["KAFKA"]).resolve()
        if not list(self.jars.glob("kafka_*.jar")):
            raise SetupError(f"KAFKA={self.jars}: there is no kafka_*.jar\n"
                             "  fix: name the directory that holds Kafka's jars")

    def command(self, results):
        return ["bash", str(HERE / "kafka.sh")]

    def environment(self):
        return {"CLASSPATH": f"{self.jars}/*"}
