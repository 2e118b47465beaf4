// node order_event.mjs BROKERS TOPIC ORDER_ID PAY_DEADLINE
import { Kafka, Partitioners, logLevel } from 'kafkajs'

const [brokers, topic, orderId, deadline] = process.argv.slice(2)
const kafka = new Kafka({ brokers: brokers.split(','), logLevel: logLevel.ERROR })
const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1, createPartitioner: Partitioners.DefaultPartitioner })

await producer.connect()
const event = { order_id: orderId, order_type: 'normal', pay_deadline: new Date(deadline) } // new Date(Date.now() + 15 * 60_000)
await producer.send({ topic, acks: -1, messages: [{ key: orderId, value: JSON.stringify(event) }] }) // throws if it was not accepted
await producer.disconnect()
