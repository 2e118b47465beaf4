# sh order_event.sh BROKERS TOPIC ORDER_ID PAY_DEADLINE
printf '{"order_id":"%s","order_type":"normal","pay_deadline":"%s"}' "$3" "$4" |   # date -u -d '15 minutes' +%FT%TZ
  kcat -P -b "$1" -t "$2" -k "$3" -X acks=all -X enable.idempotence=true -X partitioner=murmur2_random
