-- An outbox for MySQL 8.0.13 and newer and MariaDB 10.6 and newer: order events that are written in the transaction that places the
-- order, so that there is no order without its event and no event without its order. `lapse outbox-relay` publishes the
-- rows, or Debezium's outbox event router (debezium-outbox.mysql.json), whose default columns these are. docs/producers.md
-- says how to use it. Load it with the mysql or mariadb client.

create table outbox (
    id char(36) character set ascii collate ascii_bin not null primary key default (uuid()),
    aggregatetype varchar(255) not null,        -- the topic: lapse.delay.15m, lapse.schedule
    aggregateid varchar(255) character set utf8mb4 collate utf8mb4_bin not null, -- the key: the order's id
    type varchar(255) not null default 'order.placed',
    payload json not null,                      -- the event
    created_at datetime(6) not null default (utc_timestamp(6)),
    key outbox_created (created_at)             -- the relay takes the oldest first
) engine = innodb;

delimiter //

-- call schedule_cancel('A-1001', 'normal', utc_timestamp(3) + interval 15 minute, 'lapse.schedule'), in the transaction that
-- inserts the order; the deadline is in UTC. An order that is due 15 minutes from now may as well go to lapse.delay.15m.
create procedure schedule_cancel(in its_order_id varchar(200), in its_order_type varchar(200), in pay_deadline datetime(3), in topic varchar(255))
begin
    insert into outbox (aggregatetype, aggregateid, payload)
    values (topic, its_order_id, json_object('order_id', its_order_id, 'order_type', its_order_type,
        'pay_deadline', concat(left(date_format(pay_deadline, '%Y-%m-%dT%H:%i:%s.%f'), 23), 'Z')));
end //

delimiter ;
