export interface QuorateOptions {
  /** How many members hold data; 3 unless given. */
  members?: number;
  arbiters?: number;
  /** The name of the set; rs0 unless given. */
  name?: string;
  /** Keep the data below this directory instead of in memory. */
  data?: string;
  /** More arguments for `quorate up`. */
  args?: string[];
  /** As mongodb-memory-server has it. */
  replSet?: { count?: number; name?: string; storageEngine?: string };
}

export declare class QuorateError extends Error {}

export declare class Member {
  readonly index: number;
  readonly host: string;
  readonly pid: number;
  kill(): void;
  pause(): void;
  resume(): void;
  part(): void;
  heal(): void;
}

export declare class QuorateReplSet {
  static create(options?: QuorateOptions): Promise<QuorateReplSet>;
  constructor(options?: QuorateOptions);
  readonly servers: Member[];
  start(): Promise<void>;
  waitUntilRunning(): Promise<void>;
  getUri(database?: string): string;
  run(command: Record<string, unknown>, database?: string): Promise<Record<string, unknown>>;
  primary(): Promise<Member>;
  stepDown(seconds?: number): Promise<void>;
  stop(options?: unknown): Promise<boolean>;
  cleanup(options?: unknown): Promise<void>;
}

export { QuorateReplSet as MongoMemoryReplSet };
