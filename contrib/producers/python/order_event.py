# python3 order_event.py BROKERS TOPIC ORDER_ID PAY_DEADLINE
import json, sys
from datetime import datetime
from confluent_kafka import Producer

brokers, topic, order_id, deadline = sys.argv[1:]
pay_deadline = datetime.fromisoformat(deadline)  # datetime.now(timezone.utc) + timedelta(minutes=15)
assert pay_deadline.tzinfo, "a time without an offset is refused by Lapse"

def delivered(error, record):
    if error: sys.exit(f"not accepted: {error}")

# murmur2_random: the partitions that Java, Go and JavaScript clients choose for a key; librdkafka's own choice is another.
producer = Producer({"bootstrap.servers": brokers, "acks": "all", "enable.idempotence": True, "partitioner": "murmur2_random"})
event = {"order_id": order_id, "order_type": "normal", "pay_deadline": pay_deadline.isoformat()}
producer.produce(topic, key=order_id, value=json.dumps(event), on_delivery=delivered)
if producer.flush(30): sys.exit("not accepted within 30 s")
