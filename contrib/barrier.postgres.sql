-- The barrier of a participant, for PostgreSQL 13 and newer: docs/participants.md says what it must do, docs/participant-kit.md
-- how to use it. Load it once into the database of the effect, with the tool that migrates your other tables.
--
--   begin;
--   select lapse_enter('<the command, as JSON>');      not null: that is the answer, the effect is not to be done
--   …the effect…
--   select lapse_leave('<the answer, as JSON>');       stores it if it is final
--   commit;                                            or rollback: then nothing is known of the command
--
-- Read committed is enough. A stricter isolation ends one of two that meet with 40001: roll back, answer 409.
-- The role of the service needs select, insert, update, delete on lapse_barrier.
-- Once a day, again until it deletes nothing:
--   delete from lapse_barrier where command_id in (select command_id from lapse_barrier where keep_until < now() limit 1000);

create table lapse_barrier (
    command_id text primary key,
    operation text not null,
    fingerprint text not null,
    reply jsonb,                        -- null: being done by the transaction that sees it so, or blocked
    blocked_by text,                    -- the compensation that came before this action
    keep_until timestamptz not null
);
create index lapse_barrier_keep on lapse_barrier (keep_until);

-- What must not differ between repetitions. jsonb has its keys in order, however they were sent.
create function lapse_fingerprint(command jsonb) returns text language sql immutable as $$
    select encode(sha256(convert_to(jsonb_build_array(command -> 'operation', command #> '{order,tenant}',
        command #> '{order,order_id}', command #> '{order,generation}', command -> 'input')::text, 'UTF8')), 'hex')
$$;

-- Stores a final answer, takes back the row of any other, and returns the answer.
create function lapse_leave(answer jsonb) returns jsonb language plpgsql as $$
begin
    if answer ->> 'outcome' in ('done', 'not_applicable', 'rejected') then
        update lapse_barrier set reply = answer
        where command_id = answer ->> 'command_id' and reply is null and blocked_by is null;
    else
        delete from lapse_barrier where command_id = answer ->> 'command_id' and reply is null and blocked_by is null;
    end if;
    return answer;
end
$$;

create function lapse_enter(command jsonb) returns jsonb language plpgsql as $$
declare
    id text := command ->> 'command_id';
    action_id text := command ->> 'action_id';
    expires timestamptz := command ->> 'expires_at';
    -- Longer than any topic can be replayed, and than a saga stays parked over a step that may have been applied.
    keep timestamptz := expires + interval '90 days';
    answer jsonb := jsonb_build_object('command_id', id);
    known lapse_barrier;
begin
    if length(id) > 200 then raise exception 'command_id: longer than 200 characters' using errcode = '22001'; end if;
    -- The unique key makes the second of two at once wait here until the first has committed or rolled back.
    insert into lapse_barrier (command_id, operation, fingerprint, keep_until)
    select id, command ->> 'operation', lapse_fingerprint(command), keep
    where expires >= clock_timestamp()
    on conflict (command_id) do nothing;

    select * into known from lapse_barrier b where b.command_id = id;
    if not found then
        return answer || '{"outcome": "expired"}';
    elsif known.blocked_by is not null then
        return answer || '{"outcome": "superseded"}';
    elsif known.operation <> command ->> 'operation' or known.fingerprint <> lapse_fingerprint(command) then
        return answer || '{"outcome": "mismatch", "error": "input: this id was used with another operation, order or input"}';
    elsif known.reply is not null then
        return known.reply;
    elsif command ->> 'direction' <> 'undo' then
        return null;
    elsif action_id is null then
        return lapse_leave(answer || '{"outcome": "rejected", "reason": "no_action_id: a compensation must name what it undoes"}');
    end if;

    -- An action that is not known is blocked, one that is being done is waited for.
    insert into lapse_barrier (command_id, operation, fingerprint, blocked_by, keep_until)
    values (action_id, '', '', id, keep)
    on conflict (command_id) do nothing;
    select * into known from lapse_barrier b where b.command_id = action_id;
    if known.reply ->> 'outcome' = 'done' then
        return null;
    end if;
    return lapse_leave(answer || '{"outcome": "done", "output": {"undone": false, "because": "the action was not applied"}}');
end
$$;
