CREATE TABLE public.alembic_version (
    version_num character varying(32) NOT NULL
);
CREATE TABLE public.audit (
    number bigint NOT NULL,
    at double precision NOT NULL,
    token text,
    action text NOT NULL,
    subject text NOT NULL,
    outcome character varying(16) NOT NULL
);
CREATE SEQUENCE public.audit_number_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.audit_number_seq OWNED BY public.audit.number;
CREATE TABLE public.batches (
    iteration_number bigint NOT NULL,
    source character varying(128) NOT NULL COLLATE pg_catalog."C",
    body bytea NOT NULL
);
CREATE TABLE public.iterations (
    number bigint NOT NULL,
    job_number bigint NOT NULL,
    iteration bigint NOT NULL,
    state character varying(16) NOT NULL,
    num_expected bigint NOT NULL,
    num_reported bigint NOT NULL,
    began_at double precision NOT NULL,
    due_at double precision NOT NULL,
    claimable_at double precision,
    finished_at double precision,
    num_tries bigint NOT NULL,
    owner text,
    request_key character varying(80),
    summary bytea,
    problem bytea,
    measured_ms double precision
);
CREATE SEQUENCE public.iterations_number_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.iterations_number_seq OWNED BY public.iterations.number;
CREATE TABLE public.job_profiles (
    job_number bigint NOT NULL,
    profile character varying(128) NOT NULL COLLATE pg_catalog."C"
);
CREATE TABLE public.jobs (
    number bigint NOT NULL,
    name character varying(128) COLLATE pg_catalog."C",
    spec bytea NOT NULL,
    created_at double precision NOT NULL,
    served bigint NOT NULL,
    num_iterations bigint NOT NULL,
    num_planned bigint NOT NULL,
    num_failed bigint NOT NULL,
    num_open bigint NOT NULL
);
CREATE SEQUENCE public.jobs_number_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.jobs_number_seq OWNED BY public.jobs.number;
CREATE TABLE public.plans (
    number bigint NOT NULL,
    request_key character varying(80) NOT NULL,
    digest character varying(80) NOT NULL,
    body bytea NOT NULL,
    created_at double precision DEFAULT '0'::double precision NOT NULL
);
CREATE SEQUENCE public.plans_number_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.plans_number_seq OWNED BY public.plans.number;
CREATE TABLE public.profiles (
    name character varying(128) NOT NULL COLLATE pg_catalog."C",
    content bytea NOT NULL,
    submission character varying(80) NOT NULL
);
CREATE TABLE public.timings (
    number bigint NOT NULL,
    iteration_number bigint NOT NULL,
    key character varying(80) NOT NULL,
    body bytea NOT NULL
);
CREATE SEQUENCE public.timings_number_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.timings_number_seq OWNED BY public.timings.number;
CREATE TABLE public.tokens (
    name character varying(128) NOT NULL COLLATE pg_catalog."C",
    secret_hash character varying(64) NOT NULL,
    scope character varying(16) NOT NULL,
    jobs text,
    created_at double precision NOT NULL
);
ALTER TABLE ONLY public.audit ALTER COLUMN number SET DEFAULT nextval('public.audit_number_seq'::regclass);
ALTER TABLE ONLY public.iterations ALTER COLUMN number SET DEFAULT nextval('public.iterations_number_seq'::regclass);
ALTER TABLE ONLY public.jobs ALTER COLUMN number SET DEFAULT nextval('public.jobs_number_seq'::regclass);
ALTER TABLE ONLY public.plans ALTER COLUMN number SET DEFAULT nextval('public.plans_number_seq'::regclass);
ALTER TABLE ONLY public.timings ALTER COLUMN number SET DEFAULT nextval('public.timings_number_seq'::regclass);
INSERT INTO public.alembic_version VALUES ('0002');
INSERT INTO public.audit VALUES (1, 1796235524.242103, 'ops', 'create-token', 'team', 'done');
INSERT INTO public.audit VALUES (2, 1796235524.243877, NULL, 'delete-job', 'run-1', 'refused');
INSERT INTO public.batches VALUES (1, 'a', '\x006130');
INSERT INTO public.batches VALUES (1, 'b', '\x6230');
INSERT INTO public.batches VALUES (2, 'a', '\x6131');
INSERT INTO public.batches VALUES (2, 'b', '\x6231');
INSERT INTO public.batches VALUES (3, 'a', '\x6132');
INSERT INTO public.batches VALUES (3, 'b', '\x6232');
INSERT INTO public.batches VALUES (4, 'a', '\x6133');
INSERT INTO public.batches VALUES (4, 'b', '\x6233');
INSERT INTO public.batches VALUES (5, 'b', '\x6234');
INSERT INTO public.iterations VALUES (1, 1, 0, 'planned', 2, 2, 1796235524.188113, 1796235584.188113, NULL, 1796235524.202497, 1, NULL, 'sha256:0', '\x7b226d616b657370616e5f6d73223a317d', NULL, 7.25);
INSERT INTO public.iterations VALUES (2, 1, 1, 'failed', 2, 2, 1796235524.211076, 1796235584.211076, NULL, 1796235524.21909, 1, NULL, NULL, NULL, '\x7b22636f6465223a22696e6665617369626c65227d', NULL);
INSERT INTO public.iterations VALUES (3, 1, 2, 'solving', 2, 2, 1796235524.223306, 1796235584.223306, 1796235584.228679, NULL, 1, 'one', NULL, NULL, NULL, NULL);
INSERT INTO public.iterations VALUES (4, 1, 3, 'due', 2, 2, 1796235524.231643, 1796235584.231643, 1796235524.233396, NULL, 0, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.iterations VALUES (5, 1, 4, 'collecting', 2, 1, 1796235524.236337, 1796235584.236337, 1796235584.236337, NULL, 0, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.job_profiles VALUES (1, 'Zwei');
INSERT INTO public.jobs VALUES (2, 'Run-2', '\x7b226e616d65223a2252756e2d32227d', 1796235524.183535, 0, 0, 0, 0, 0);
INSERT INTO public.jobs VALUES (1, 'run-1', '\x7b226e616d65223a2272756e2d31222c226e756d5f67707573223a382c2270726f66696c65223a225a776569227d', 1796235524.180634, 3, 5, 1, 1, 3);
INSERT INTO public.plans VALUES (1, 'sha256:free', 'sha256:free-digest', '\x7b22706c616e223a2266726565227d', 1796235524.17801);
INSERT INTO public.plans VALUES (2, 'sha256:0', 'sha256:0-digest', '\x000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f606162636465666768696a6b6c6d6e6f707172737475767778797a7b7c7d7e7f808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9fa0a1a2a3a4a5a6a7a8a9aaabacadaeafb0b1b2b3b4b5b6b7b8b9babbbcbdbebfc0c1c2c3c4c5c6c7c8c9cacbcccdcecfd0d1d2d3d4d5d6d7d8d9dadbdcdddedfe0e1e2e3e4e5e6e7e8e9eaebecedeeeff0f1f2f3f4f5f6f7f8f9fafbfcfdfeff', 1796235524.201914);
INSERT INTO public.profiles VALUES ('Zwei', '\x7b226e616d65223a225a776569227d', 'sha256:zwei');
INSERT INTO public.timings VALUES (1, 1, 'k1', '\x7431');
INSERT INTO public.timings VALUES (2, 1, 'k2', '\x7432');
INSERT INTO public.tokens VALUES ('ops', '1111111111111111111111111111111111111111111111111111111111111111', 'admin', NULL, 1796235524.239637);
INSERT INTO public.tokens VALUES ('team', '2222222222222222222222222222222222222222222222222222222222222222', 'plan', '["run-*"]', 1796235524.240971);
SELECT pg_catalog.setval('public.audit_number_seq', 2, true);
SELECT pg_catalog.setval('public.iterations_number_seq', 5, true);
SELECT pg_catalog.setval('public.jobs_number_seq', 2, true);
SELECT pg_catalog.setval('public.plans_number_seq', 2, true);
SELECT pg_catalog.setval('public.timings_number_seq', 2, true);
ALTER TABLE ONLY public.alembic_version
    ADD CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num);
ALTER TABLE ONLY public.audit
    ADD CONSTRAINT audit_pkey PRIMARY KEY (number);
ALTER TABLE ONLY public.batches
    ADD CONSTRAINT batches_pkey PRIMARY KEY (iteration_number, source);
ALTER TABLE ONLY public.iterations
    ADD CONSTRAINT iterations_pkey PRIMARY KEY (number);
ALTER TABLE ONLY public.job_profiles
    ADD CONSTRAINT job_profiles_pkey PRIMARY KEY (job_number, profile);
ALTER TABLE ONLY public.jobs
    ADD CONSTRAINT jobs_pkey PRIMARY KEY (number);
ALTER TABLE ONLY public.plans
    ADD CONSTRAINT plans_pkey PRIMARY KEY (number);
ALTER TABLE ONLY public.plans
    ADD CONSTRAINT plans_request_key_key UNIQUE (request_key);
ALTER TABLE ONLY public.profiles
    ADD CONSTRAINT profiles_pkey PRIMARY KEY (name);
ALTER TABLE ONLY public.timings
    ADD CONSTRAINT timings_pkey PRIMARY KEY (number);
ALTER TABLE ONLY public.tokens
    ADD CONSTRAINT tokens_pkey PRIMARY KEY (name);
ALTER TABLE ONLY public.iterations
    ADD CONSTRAINT uq_iterations_job_iteration UNIQUE (job_number, iteration);
ALTER TABLE ONLY public.jobs
    ADD CONSTRAINT uq_jobs_name UNIQUE (name);
ALTER TABLE ONLY public.timings
    ADD CONSTRAINT uq_timings_iteration_key UNIQUE (iteration_number, key);
ALTER TABLE ONLY public.tokens
    ADD CONSTRAINT uq_tokens_secret_hash UNIQUE (secret_hash);
CREATE INDEX ix_iterations_claimable ON public.iterations USING btree (claimable_at) WHERE (claimable_at IS NOT NULL);
CREATE INDEX ix_iterations_finished ON public.iterations USING btree (finished_at) WHERE (finished_at IS NOT NULL);
CREATE INDEX ix_iterations_job_claimable ON public.iterations USING btree (job_number, claimable_at) WHERE (claimable_at IS NOT NULL);
CREATE INDEX ix_iterations_request_key ON public.iterations USING btree (request_key);
CREATE INDEX ix_job_profiles_profile ON public.job_profiles USING btree (profile);
CREATE INDEX ix_jobs_deleted ON public.jobs USING btree (number) WHERE (name IS NULL);
CREATE INDEX ix_jobs_served ON public.jobs USING btree (served);
CREATE INDEX ix_jobs_turn ON public.jobs USING btree (served, number) WHERE (num_open > 0);
CREATE INDEX ix_plans_created_at ON public.plans USING btree (created_at);
CREATE INDEX ix_plans_digest ON public.plans USING btree (digest);
ALTER TABLE ONLY public.batches
    ADD CONSTRAINT batches_iteration_number_fkey FOREIGN KEY (iteration_number) REFERENCES public.iterations(number) ON DELETE CASCADE;
ALTER TABLE ONLY public.iterations
    ADD CONSTRAINT iterations_job_number_fkey FOREIGN KEY (job_number) REFERENCES public.jobs(number) ON DELETE CASCADE;
ALTER TABLE ONLY public.iterations
    ADD CONSTRAINT iterations_request_key_fkey FOREIGN KEY (request_key) REFERENCES public.plans(request_key);
ALTER TABLE ONLY public.job_profiles
    ADD CONSTRAINT job_profiles_job_number_fkey FOREIGN KEY (job_number) REFERENCES public.jobs(number) ON DELETE CASCADE;
ALTER TABLE ONLY public.timings
    ADD CONSTRAINT timings_iteration_number_fkey FOREIGN KEY (iteration_number) REFERENCES public.iterations(number) ON DELETE CASCADE;
