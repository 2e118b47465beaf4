-- Alerts about participants, and probes in a saga's history: what their columns say.
comment on view ops_v1.alerts is
  'One row per definition, step, kind (compensated, parked, continued, unresolved) and error class; one per participant of '
  'kind participant_down: definition is empty then, step names the participant, class is unreachable, unanswered or '
  'configuration. state: open (sent again at next_send_at), acknowledged, resolved. message: the latest saga''s. sagas: how '
  'many it stands for now; of participant_down: how many waited when it was last heard of, at last_at.';
comment on view ops_v1.saga_timeline is
  'What happened to a saga, seq from 1 without gaps. kind: started, replied, postponed, timed_out, taken_over, deferred, probed '
  '(went ahead to see whether its participant answers again, and it did not: at no attempt), cause_raised, retried, resolved. '
  'state: the saga''s afterwards. detail: the outcome and its words; of started: the event. hash: sha256 over the previous '
  'hash and the stored text, hex.';
