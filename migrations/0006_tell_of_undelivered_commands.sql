-- Commands that Kafka may not have taken, in a saga's history: what the view says of them.
comment on view ops_v1.saga_timeline is
  'What happened to a saga, seq from 1 without gaps. kind: started, replied, postponed, timed_out, taken_over, deferred, probed '
  '(went ahead to see whether its participant answers again, and it did not: at no attempt), undelivered (nobody knows whether '
  'its command went out: at no attempt), cause_raised, retried, resolved. state: the saga''s afterwards. detail: the outcome and '
  'its words; of started: the event. hash: sha256 over the previous hash and the stored text, hex.';
