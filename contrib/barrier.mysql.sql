-- The barrier of a participant, for MySQL 8.0.21 and newer and MariaDB 10.6 and newer: docs/participants.md says what it must do,
-- docs/participant-kit.md how to use it. Load it once into the database of the effect, with the mysql or mariadb client.
--
--   start transaction;
--   call lapse_enter('<the command, as JSON>');        one row, one column; not null: that is the answer, the effect is not to be done
--   …the effect…
--   call lapse_leave('<the answer, as JSON>');         stores it if it is final
--   commit;                                            or rollback: then nothing is known of the command
--
-- Any isolation will do: rows are read with locks. InnoDB may end one of several transactions with a deadlock (1213) or a
-- lock wait timeout (1205, which rolls back the statement only): roll back, and answer 409 or 423. The rarer, the shorter the
-- gaps it locks: prefer `set transaction isolation level read committed`.
-- The user of the service needs select, insert, update, delete on lapse_barrier, and execute on both procedures.
-- Once a day, again until it deletes nothing:
--   delete from lapse_barrier where keep_until < utc_timestamp() limit 1000;

create table lapse_barrier (
    command_id varchar(200) character set utf8mb4 collate utf8mb4_bin not null primary key,
    operation varchar(200) character set utf8mb4 collate utf8mb4_bin not null,
    fingerprint char(64) character set ascii collate ascii_bin not null,
    reply json,                         -- null: being done by the transaction that sees it so, or blocked
    blocked_by varchar(200) character set utf8mb4 collate utf8mb4_bin,   -- the compensation that came before this action
    keep_until datetime(6) not null,    -- UTC
    key lapse_barrier_keep (keep_until)
) engine = innodb;

delimiter //

-- Stores a final answer and takes back the row of any other.
create procedure lapse_leave(in its_answer json)
begin
    if json_value(its_answer, '$.outcome') in ('done', 'not_applicable', 'rejected') then
        update lapse_barrier set reply = its_answer
        where command_id = json_value(its_answer, '$.command_id') and reply is null and blocked_by is null;
    else
        delete from lapse_barrier
        where command_id = json_value(its_answer, '$.command_id') and reply is null and blocked_by is null;
    end if;
end //

create procedure lapse_enter(in its_command json)
begin
    declare id varchar(200) character set utf8mb4 default json_value(its_command, '$.command_id');
    declare its_operation varchar(200) character set utf8mb4 default json_value(its_command, '$.operation');
    declare action_id varchar(200) character set utf8mb4 default json_value(its_command, '$.action_id');
    declare expires datetime(6) default
        str_to_date(left(json_value(its_command, '$.expires_at'), 19), '%Y-%m-%dT%H:%i:%s');
    -- What must not differ between repetitions. MySQL has the keys of the input in order, MariaDB puts them in order from 10.7 on.
    declare print char(64) default sha2(json_array(its_operation, json_value(its_command, '$.order.tenant'),
        json_value(its_command, '$.order.order_id'), json_value(its_command, '$.order.generation'),
        concat(/*M!100700 json_normalize( */ json_extract(its_command, '$.input') /*M!100700 ) */)), 256);
    declare known_operation varchar(200) character set utf8mb4;
    declare known_print char(64);
    declare known_reply, answer json;
    declare known_blocked_by varchar(200) character set utf8mb4;

    if expires is null or json_value(its_command, '$.expires_at') not like '%Z' then
        signal sqlstate '22007' set message_text = 'expires_at: not a time in UTC';
    end if;
    -- The unique key makes the second of two at once wait here until the first has committed or rolled back. Not insert
    -- ignore, which would cut what is too long; and its shared lock would let two that waited deadlock.
    if expires >= utc_timestamp(6) then
        -- Kept longer than any topic can be replayed, and than a saga stays parked over a step that may have been applied.
        insert into lapse_barrier (command_id, operation, fingerprint, keep_until)
        values (id, its_operation, print, expires + interval 90 day)
        on duplicate key update command_id = id;
    end if;

    select operation, fingerprint, reply, blocked_by into known_operation, known_print, known_reply, known_blocked_by
    from lapse_barrier where command_id = id for update;
    if known_operation is null then
        set answer = json_object('command_id', id, 'outcome', 'expired');
    elseif known_blocked_by is not null then
        set answer = json_object('command_id', id, 'outcome', 'superseded');
    elseif known_operation <> its_operation or known_print <> print then
        set answer = json_object('command_id', id, 'outcome', 'mismatch',
            'error', 'input: this id was used with another operation, order or input');
    elseif known_reply is not null then
        set answer = known_reply;
    elseif json_value(its_command, '$.direction') <> 'undo' then
        set answer = null;
    elseif action_id is null then
        set answer = json_object('command_id', id, 'outcome', 'rejected',
            'reason', 'no_action_id: a compensation must name what it undoes');
        call lapse_leave(answer);
    else
        -- An action that is not known is blocked, one that is being done is waited for.
        insert into lapse_barrier (command_id, operation, fingerprint, blocked_by, keep_until)
        values (action_id, '', '', id, expires + interval 90 day)
        on duplicate key update command_id = action_id;
        select reply into known_reply from lapse_barrier where command_id = action_id for update;
        if known_reply is null or json_value(known_reply, '$.outcome') <> 'done' then
            set answer = json_object('command_id', id, 'outcome', 'done', 'output',
                json_object('undone', false, 'because', 'the action was not applied'));
            call lapse_leave(answer);
        end if;
    end if;
    select answer;
end //

delimiter ;
