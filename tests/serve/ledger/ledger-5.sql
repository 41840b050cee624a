BEGIN TRANSACTION;
CREATE TABLE balances (
	model TEXT NOT NULL, 
	client TEXT NOT NULL, 
	coordinate INTEGER NOT NULL, 
	capacity BIGINT NOT NULL, 
	spent BIGINT NOT NULL, 
	PRIMARY KEY (model, client, coordinate), 
	CONSTRAINT never_overdrawn CHECK (spent >= 0 AND spent <= capacity), 
	FOREIGN KEY(model) REFERENCES models (model)
);
INSERT INTO "balances" VALUES('m','',0,100000000000,30000000000);
INSERT INTO "balances" VALUES('m','ann',0,100000000000,30000000000);
CREATE TABLE clients (
	client TEXT NOT NULL, 
	operator INTEGER NOT NULL, 
	answers BIGINT, 
	made_at BIGINT NOT NULL, 
	PRIMARY KEY (client)
);
INSERT INTO "clients" VALUES('ann',0,7,1794963395348439);
INSERT INTO "clients" VALUES('bob',1,NULL,1794963395364593);
CREATE TABLE data_sets (
	data_set TEXT NOT NULL, 
	epsilon DOUBLE NOT NULL, 
	delta DOUBLE NOT NULL, 
	PRIMARY KEY (data_set)
);
INSERT INTO "data_sets" VALUES('people',3.0,0.001);
CREATE TABLE draw_units (
	release TEXT NOT NULL, 
	unit TEXT NOT NULL, 
	PRIMARY KEY (release)
);
INSERT INTO "draw_units" VALUES('hmac-491862b031800588498bf4ee2742077965d1e4d6aef43f679b75dd58b33cac5e','person');
CREATE TABLE draws (
	release TEXT NOT NULL, 
	data_set TEXT NOT NULL, 
	epsilon DOUBLE, 
	delta DOUBLE NOT NULL, 
	neighbours TEXT NOT NULL, 
	PRIMARY KEY (release)
);
INSERT INTO "draws" VALUES('hmac-491862b031800588498bf4ee2742077965d1e4d6aef43f679b75dd58b33cac5e','people',1.0,1.0e-05,'add-or-remove');
CREATE TABLE entries (
	model TEXT NOT NULL, 
	sequence BIGINT NOT NULL, 
	receipt TEXT NOT NULL, 
	kind TEXT NOT NULL CHECK (kind IN ('limit', 'spend')), 
	client TEXT NOT NULL, 
	answers BIGINT NOT NULL, 
	units TEXT NOT NULL, 
	made_at BIGINT NOT NULL, 
	hash TEXT NOT NULL, 
	PRIMARY KEY (model, sequence), 
	FOREIGN KEY(model) REFERENCES models (model), 
	UNIQUE (receipt)
);
INSERT INTO "entries" VALUES('m',1,'98612e91b13f4008810c5215cd476261','limit','',0,'[100000000000]',1794963395254816,'857f432d0887822ba6049902fef5e23e1f234e995b40b4ee704d87a380196887');
INSERT INTO "entries" VALUES('m',2,'f9901df1df8441fa99ba8e3ba6ab3713','limit','ann',0,'[100000000000]',1794963395412547,'6b6a4485450596d57f72cb320d3592f352962635bec161384b1b885b72f06f7c');
INSERT INTO "entries" VALUES('m',3,'1a32d7a3236b415596056cf55ff62bb6','spend','ann',3,'[30000000000]',1794963395412700,'e7cade75af69fc480a4633fed44774e0a4e0624b809d714056c52a36ab0a2bf9');
CREATE TABLE keys (
	id TEXT NOT NULL, 
	client TEXT NOT NULL, 
	salt TEXT NOT NULL, 
	hash TEXT NOT NULL, 
	made_at BIGINT NOT NULL, 
	revoked_at BIGINT, 
	PRIMARY KEY (id), 
	FOREIGN KEY(client) REFERENCES clients (client)
);
INSERT INTO "keys" VALUES('92db8232efef6222','ann','a716251f2055e2ef373ef4f34e9ca141','69472c1f60ffbfc631aebc4ee7beb91058975bf9cd0fc5b117cec6b42d770707',1794963395348439,NULL);
INSERT INTO "keys" VALUES('cd2d4c1ae372f819','bob','3360fe4607477e4105d7ba90a3965247','8e413c805f2e85825216752b0e4188447d9f7b1f1356a54c34365ba76d3f1846',1794963395364593,1794963395388424);
CREATE TABLE models (
	model TEXT NOT NULL, 
	release TEXT NOT NULL, 
	measure TEXT NOT NULL, 
	orders TEXT NOT NULL, 
	sequence BIGINT NOT NULL, 
	head TEXT NOT NULL, 
	PRIMARY KEY (model)
);
INSERT INTO "models" VALUES('m','hmac-491862b031800588498bf4ee2742077965d1e4d6aef43f679b75dd58b33cac5e','gdp','[]',3,'e7cade75af69fc480a4633fed44774e0a4e0624b809d714056c52a36ab0a2bf9');
CREATE TABLE names (
	name TEXT NOT NULL, 
	model TEXT NOT NULL, 
	PRIMARY KEY (name), 
	FOREIGN KEY(model) REFERENCES models (model)
);
INSERT INTO "names" VALUES('m','m');
INSERT INTO "names" VALUES('alias','m');
CREATE TABLE properties (
	name TEXT NOT NULL, 
	value TEXT NOT NULL, 
	PRIMARY KEY (name)
);
INSERT INTO "properties" VALUES('id','04c057be0f95e8ef');
INSERT INTO "properties" VALUES('key','337358029dd54a76aa7f5c83a6f942278334ba9b7e760052842ef5b396c7a691');
CREATE TABLE repeats (
	model TEXT NOT NULL, 
	client TEXT NOT NULL, 
	question TEXT NOT NULL, 
	answer TEXT NOT NULL, 
	PRIMARY KEY (model, client, question), 
	FOREIGN KEY(model) REFERENCES models (model)
);
INSERT INTO "repeats" VALUES('m','ann','q','known');
CREATE TABLE retries (
	model TEXT NOT NULL, 
	client TEXT NOT NULL, 
	retry_key TEXT NOT NULL, 
	question TEXT NOT NULL, 
	receipt TEXT NOT NULL, 
	answer TEXT, 
	made_at BIGINT NOT NULL, 
	PRIMARY KEY (model, client, retry_key), 
	FOREIGN KEY(model) REFERENCES models (model), 
	FOREIGN KEY(receipt) REFERENCES entries (receipt)
);
INSERT INTO "retries" VALUES('m','ann','k','what?','1a32d7a3236b415596056cf55ff62bb6','first',1794963395412700);
CREATE TABLE version (
	version INTEGER NOT NULL
);
INSERT INTO "version" VALUES(5);
CREATE INDEX entries_by_time ON entries (model, made_at);
CREATE INDEX retries_by_time ON retries (made_at);
CREATE TRIGGER entries_no_update BEFORE UPDATE ON entries BEGIN SELECT RAISE(ABORT, 'the history of a ledger is append-only'); END;
CREATE TRIGGER entries_no_delete BEFORE DELETE ON entries BEGIN SELECT RAISE(ABORT, 'the history of a ledger is append-only'); END;
COMMIT;
