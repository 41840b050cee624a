BEGIN TRANSACTION;
CREATE TABLE balances (
            model TEXT NOT NULL REFERENCES models (model),
            client TEXT NOT NULL,
            coordinate INTEGER NOT NULL,
            capacity BIGINT NOT NULL,
            spent BIGINT NOT NULL,
            PRIMARY KEY (model, client, coordinate),
            CONSTRAINT never_overdrawn CHECK (spent >= 0 AND spent <= capacity)
        );
INSERT INTO "balances" VALUES('m','',0,100000000000,30000000000);
INSERT INTO "balances" VALUES('m','ann',0,70000000000,30000000000);
CREATE TABLE clients (
            client TEXT PRIMARY KEY,
            operator INTEGER NOT NULL,
            answers BIGINT,
            made_at BIGINT NOT NULL
        );
INSERT INTO "clients" VALUES('ann',0,7,1794883565316208);
INSERT INTO "clients" VALUES('ops',1,NULL,1794883565328174);
CREATE TABLE entries (
            model TEXT NOT NULL REFERENCES models (model),
            sequence BIGINT NOT NULL,
            receipt TEXT NOT NULL UNIQUE,
            kind TEXT NOT NULL CHECK (kind IN ('limit', 'spend')),
            client TEXT NOT NULL,
            answers BIGINT NOT NULL,
            units TEXT NOT NULL,
            made_at BIGINT NOT NULL,
            hash TEXT NOT NULL,
            PRIMARY KEY (model, sequence)
        );
INSERT INTO "entries" VALUES('m',1,'697201d34b404ce9a59b03b6f7794963','limit','',0,'[100000000000]',1794883565334048,'730a0a184c7b3c6b0dc304e57baf43ce5aa64b7a75cff8c858bb383eb8ab83e2');
INSERT INTO "entries" VALUES('m',2,'6122532c936b4a86a8512fda74d32f96','limit','ann',0,'[70000000000]',1794883565338882,'fcbfcc4b4214e860af5eee927f38718fd0f9b4e70eb20c27d9a2522d1395045d');
INSERT INTO "entries" VALUES('m',3,'1308a71067224f74afaa5e5f27670be0','spend','ann',3,'[30000000000]',1794883565338959,'60601b900a0675fa9959db3afbf4d9f6f9ad18b486110218afb18fd91bf06be4');
CREATE TABLE keys (
            id TEXT PRIMARY KEY,
            client TEXT NOT NULL REFERENCES clients (client),
            salt TEXT NOT NULL,
            hash TEXT NOT NULL,
            made_at BIGINT NOT NULL,
            revoked_at BIGINT
        );
INSERT INTO "keys" VALUES('1cc084970bced752','ann','a38ba1fd0d8e610063c95182fe6f4cc1','94b667e9c9a3b97e637398e41c51d6d6f0c5ed08d82d195377d0c474fb7d6ba8',1794883565316208,NULL);
INSERT INTO "keys" VALUES('0697252c447ef9e9','ops','aa7650dbd2be2388dd40962a6d3279f4','898094d48754cf01b7079a66f5cb49194f329f72b32e90975a6b28643d002a56',1794883565328174,NULL);
CREATE TABLE models (
            model TEXT PRIMARY KEY,
            release TEXT NOT NULL,
            measure TEXT NOT NULL,
            orders TEXT NOT NULL,
            sequence BIGINT NOT NULL,
            head TEXT NOT NULL
        );
INSERT INTO "models" VALUES('m','0000000000000000000000000000000000000000000000000000000000000000','gdp','[]',3,'60601b900a0675fa9959db3afbf4d9f6f9ad18b486110218afb18fd91bf06be4');
CREATE TABLE repeats (
            model TEXT NOT NULL REFERENCES models (model),
            client TEXT NOT NULL,
            question TEXT NOT NULL,
            answer TEXT NOT NULL,
            PRIMARY KEY (model, client, question)
        );
INSERT INTO "repeats" VALUES('m','ann','q','known');
CREATE TABLE retries (
            model TEXT NOT NULL REFERENCES models (model),
            client TEXT NOT NULL,
            retry_key TEXT NOT NULL,
            question TEXT NOT NULL,
            receipt TEXT NOT NULL REFERENCES entries (receipt),
            answer TEXT,
            made_at BIGINT NOT NULL,
            PRIMARY KEY (model, client, retry_key)
        );
INSERT INTO "retries" VALUES('m','ann','k','what?','1308a71067224f74afaa5e5f27670be0','first',1794883565338959);
CREATE TABLE version (version INTEGER NOT NULL);
INSERT INTO "version" VALUES(3);
CREATE INDEX entries_by_time ON entries (model, made_at);
CREATE TRIGGER entries_no_update BEFORE UPDATE ON entries BEGIN SELECT RAISE(ABORT, 'the history of a ledger is append-only'); END;
CREATE TRIGGER entries_no_delete BEFORE DELETE ON entries BEGIN SELECT RAISE(ABORT, 'the history of a ledger is append-only'); END;
CREATE INDEX retries_by_time ON retries (made_at);
COMMIT;
