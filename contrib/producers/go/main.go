// order-event BROKERS TOPIC ORDER_ID PAY_DEADLINE
package main

import (
	"context"
	"encoding/json"
	"log"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

type orderEvent struct {
	OrderID     string    `json:"order_id"`
	OrderType   string    `json:"order_type"`
	PayDeadline time.Time `json:"pay_deadline"` // RFC 3339 with its offset
}

func main() {
	brokers, topic, orderID := os.Args[1], os.Args[2], os.Args[3]
	deadline, err := time.Parse(time.RFC3339, os.Args[4]) // time.Now().Add(15 * time.Minute)
	if err != nil {
		log.Fatal(err)
	}
	// Idempotent, all replicas, murmur2: franz-go's defaults.
	client, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(brokers, ",")...))
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	value, err := json.Marshal(orderEvent{orderID, "normal", deadline})
	if err != nil {
		log.Fatal(err)
	}
	record := &kgo.Record{Topic: topic, Key: []byte(orderID), Value: value}
	if err := client.ProduceSync(context.Background(), record).FirstErr(); err != nil {
		log.Fatal(err)
	}
}
