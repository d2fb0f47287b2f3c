// The types of penstock.js. docs/browser.md explains what they mean.

export type Row = Record<string, any>;
export type Phase = "idle" | "connecting" | "live" | "waiting" | "paused" | "ended";
export type Transport = "websocket" | "sse" | "poll";
export type Order = string | string[] | ((a: Row, b: Row) => number);

export interface State {
  phase: Phase;
  transport: Transport | null;
  retryAt_ms: number | null;
  error: Error | null;
}

export interface Options {
  key?: string | null | (() => string | null | Promise<string | null>);
  user?: string;
  storage?: "indexeddb" | "local" | "session" | Store;
  pauseHidden?: boolean;
  transports?: Transport[];
  backoff?: { base_ms?: number; cap_ms?: number };
  state?: (state: State) => void;
}

export interface Filter {
  where?: string;
  select?: string;
}

export interface Following extends Filter {
  since?: string;
  last?: number;
  keep?: string;
  key?: string[];
}

export interface Tabling extends Filter {
  key: string[];
  order?: Order;
  keep?: string;
  most?: number;
}

export interface Handlers {
  snapshot?: (data: any, about: { cursor: string | null; kept: boolean }) => unknown;
  change?: (data: any, about: { cursor: string }) => unknown;
  reset?: (data: any, about: { cursor: string }) => unknown;
  stall?: (data: any, about: { cursor: string }) => unknown;
  progress?: (data: any, about: { cursor: string }) => unknown;
  state?: (state: State) => void;
  error?: (error: Error) => void;
  unkept?: (error: Error) => void;
}

export interface Place {
  what: string;
  cursor: string | null;
  stamp: string;
  at_ms: number;
}

export interface Change {
  place: Place;
  after: string | null;
  put: [string | number, Row][] | null;
  drop: (string | number)[];
  all: () => [string | number, Row][];
}

export interface Store {
  load(name: string): Promise<(Place & { rows: [string | number, Row][] }) | null>;
  save(name: string, change: Change): Promise<boolean>;
  forget(name: string): Promise<void>;
}

export interface Subscription {
  readonly cursor: string | null;
  readonly state: State;
  pause(): void;
  resume(): void;
  filter(filter: Filter): void;
  close(): Promise<void>;
}

export interface Table {
  readonly rows: Row[];
  readonly size: number;
  readonly full: boolean;
  readonly known: boolean;
  readonly behind: number;
  readonly error: Error | null;
  readonly subscription: Subscription;
  get(...key: any[]): Row | undefined;
  watch(watcher: () => void): () => void;
  close(): Promise<void>;
}

export interface Receipt {
  accepted: number;
  duplicates: number;
  rejected: number;
  cursor: string | null;
  errors: { index: number; reason: string; path: string }[];
  shed?: number;
  ack: string | null;
}

export interface Penstock {
  readonly state: State;
  follow(kind: "views" | "streams" | "queries", name: string, options?: Following, handlers?: Handlers): Subscription;
  table(view: string, options: Tabling): Table;
  publish(
    stream: string,
    events: Row | Row[],
    options?: { idempotencyKey?: string; signal?: AbortSignal },
  ): Promise<Receipt>;
  query(sql: string, options?: { limit?: number; signal?: AbortSignal; timeout_ms?: number }): Promise<any>;
  get(path: string, query?: Record<string, any>, options?: { signal?: AbortSignal; timeout_ms?: number }): Promise<any>;
  post(path: string, value?: any, options?: { signal?: AbortSignal; timeout_ms?: number }): Promise<any>;
  pause(): void;
  resume(): void;
  forget(name: string): Promise<void>;
  close(): Promise<void>;
}

export class Refused extends Error {
  readonly status: number;
  readonly code: string | null;
  readonly problem: any;
  readonly retry: boolean;
  readonly retryAfter_s: number;
}

export function connect(address?: string | URL, options?: Options): Penstock;
