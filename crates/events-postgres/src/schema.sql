-- Version 1. A namespace is a row. Its content is in a numbered space: clearing the namespace gives it a new space, and
-- deleting a stream gives the stream a new number, so neither takes longer for many messages. Detached messages are
-- invisible and removed later.
--
-- A writer of messages locks the row of the namespace until it commits, so global positions have no gaps and become
-- visible in order.

CREATE SEQUENCE spaces;
CREATE SEQUENCE revisions;

CREATE TABLE namespaces (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text COLLATE "C" NOT NULL UNIQUE,
    -- UTF-8 as bytes, because text cannot store U+0000.
    description bytea NOT NULL,
    metadata text,
    created_at bigint NOT NULL,
    space bigint NOT NULL UNIQUE DEFAULT nextval('spaces'),
    last_global bigint NOT NULL DEFAULT 0,
    last_stream bigint NOT NULL DEFAULT 0,
    last_category bigint NOT NULL DEFAULT 0,
    messages bigint NOT NULL DEFAULT 0,
    -- Streams with at least one message.
    streams bigint NOT NULL DEFAULT 0,
    change bigint NOT NULL DEFAULT 0,
    cleared bigint NOT NULL DEFAULT 0,
    tokens_change bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);

CREATE TABLE categories (
    space bigint NOT NULL,
    category bigint NOT NULL,
    name text COLLATE "C" NOT NULL,
    messages bigint NOT NULL,
    streams bigint NOT NULL,
    PRIMARY KEY (space, category),
    UNIQUE (space, name)
) WITH (fillfactor = 70);

CREATE TABLE streams (
    space bigint NOT NULL,
    stream bigint NOT NULL,
    category bigint NOT NULL,
    name text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    -- Messages before this position were deleted.
    floor bigint NOT NULL DEFAULT 0,
    messages bigint NOT NULL,
    -- The time of the last message.
    last_time bigint NOT NULL,
    -- When the next message expires, if a retention rule limits the age.
    expires_at bigint,
    tombstone boolean NOT NULL DEFAULT false,
    PRIMARY KEY (space, stream),
    UNIQUE (space, name)
) WITH (fillfactor = 70);
CREATE INDEX streams_expiring ON streams (space, expires_at) WHERE expires_at IS NOT NULL;

CREATE TABLE messages (
    space bigint NOT NULL,
    global bigint NOT NULL,
    stream bigint NOT NULL,
    position bigint NOT NULL,
    category bigint NOT NULL,
    time bigint NOT NULL,
    -- The hash of the cardinal id, for consumer groups.
    group_hash bigint,
    -- The hash of the category of the stream that the metadata name as the correlation.
    correlation bigint,
    -- Retention by age applies to the message.
    ages boolean NOT NULL,
    -- 'u' and the bytes of a UUID, or 't' and UTF-8.
    id bytea NOT NULL,
    kind text COLLATE "C" NOT NULL,
    data text NOT NULL,
    metadata text,
    PRIMARY KEY (space, global),
    UNIQUE (space, stream, position),
    UNIQUE (space, id)
);
CREATE INDEX messages_category ON messages (space, category, global) INCLUDE (stream, group_hash);
CREATE INDEX messages_correlation ON messages (space, correlation, global) WHERE correlation IS NOT NULL;
CREATE INDEX messages_ageing ON messages (space, stream, time) WHERE ages;

CREATE TABLE tokens (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    namespace bigint NOT NULL REFERENCES namespaces ON DELETE CASCADE,
    id text COLLATE "C" NOT NULL UNIQUE,
    digest bytea NOT NULL,
    may_read boolean NOT NULL,
    may_write boolean NOT NULL,
    may_admin boolean NOT NULL,
    description bytea NOT NULL,
    created_at bigint NOT NULL,
    expires_at bigint,
    UNIQUE (namespace, digest)
);

CREATE TABLE documents (
    namespace bigint NOT NULL REFERENCES namespaces ON DELETE CASCADE,
    name bytea NOT NULL,
    revision bigint NOT NULL,
    content bytea NOT NULL,
    PRIMARY KEY (namespace, name)
);

CREATE TABLE retention (
    namespace bigint NOT NULL REFERENCES namespaces ON DELETE CASCADE,
    of_category boolean NOT NULL,
    name text COLLATE "C" NOT NULL,
    max_age bigint,
    max_count bigint,
    truncate_before bigint,
    PRIMARY KEY (namespace, of_category, name)
);

-- Spaces and streams whose messages are detached and not yet removed.
CREATE TABLE retired_spaces (space bigint PRIMARY KEY);
CREATE TABLE retired_streams (space bigint NOT NULL, stream bigint NOT NULL, PRIMARY KEY (space, stream));

-- Removes the messages of a stream that its retention rule hides, updates the counts and returns the number of removed
-- messages. The caller must hold the lock on the row of the namespace.
CREATE FUNCTION trim_stream(p_space bigint, p_stream bigint, p_now bigint) RETURNS bigint
LANGUAGE plpgsql SET search_path = thalweg_events, pg_catalog AS $$
DECLARE
    s streams%ROWTYPE;
    r retention%ROWTYPE;
    cutoff bigint;
    surplus bigint;
    part bigint;
    gone bigint := 0;
    emptied bigint := 0;
BEGIN
    SELECT * INTO s FROM streams WHERE space = p_space AND stream = p_stream;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    SELECT rule.* INTO r
        FROM retention rule JOIN namespaces n ON n.id = rule.namespace
        WHERE n.space = p_space
            AND (NOT rule.of_category AND rule.name = s.name
                OR rule.of_category AND rule.name = split_part(s.name, '-', 1))
        ORDER BY rule.of_category LIMIT 1;
    cutoff := coalesce(r.truncate_before, 0);
    surplus := s.messages - r.max_count;
    IF surplus > 0 THEN
        SELECT greatest(cutoff, position + 1) INTO cutoff FROM messages
            WHERE space = p_space AND stream = p_stream ORDER BY position OFFSET surplus - 1 LIMIT 1;
    END IF;
    IF cutoff > 0 THEN
        DELETE FROM messages WHERE space = p_space AND stream = p_stream AND position < cutoff;
        GET DIAGNOSTICS part = ROW_COUNT;
        gone := gone + part;
    END IF;
    IF r.max_age IS NOT NULL THEN
        DELETE FROM messages WHERE space = p_space AND stream = p_stream AND ages AND time < p_now - r.max_age;
        GET DIAGNOSTICS part = ROW_COUNT;
        gone := gone + part;
    END IF;
    UPDATE streams SET
        messages = messages - gone,
        expires_at = r.max_age
            + (SELECT min(time) FROM messages m WHERE m.space = p_space AND m.stream = p_stream AND m.ages),
        last_time = CASE WHEN gone = 0 THEN last_time ELSE coalesce(
            (SELECT m.time FROM messages m WHERE m.space = p_space AND m.stream = p_stream
                ORDER BY m.position DESC LIMIT 1), last_time) END
        WHERE space = p_space AND stream = p_stream;
    IF gone > 0 THEN
        emptied := CASE WHEN gone = s.messages THEN 1 ELSE 0 END;
        UPDATE categories SET messages = messages - gone, streams = streams - emptied
            WHERE space = p_space AND category = s.category;
        UPDATE namespaces SET messages = messages - gone, streams = streams - emptied WHERE space = p_space;
    END IF;
    RETURN gone;
END
$$;
